"""Data sets, and the order in which a run visits their examples.

    dataset.py            what each source returns: a `DataSet` of arrays or texts
    batches.py            the order of the examples, and padding
    digits.py, mnist.py   sources of images
    reviews.py, imdb.py   sources of texts
    random_numbers.py     a source of both inputs and targets
    tokens.py, tfidf.py   featurizers, which turn texts into arrays

`pmapdp/registry.py` has the names by which they are chosen.
"""
