"""Your data, model, loss and optimizer, fitted to the trainer or refused.

Nearly every check of your own parts is in this folder, and `job.py` makes it before the
first update. Only examples that are read one by one are checked later, when they're
read. Read the files in this order:

    data.py        makes a `DataSet` of your data, for the batches
    arrays.py        checks one array, and converts it to a type that JAX has
    map_style.py     reads examples one by one, from an object with `data[i]`
    images.py        reads images in folders, one by one
    model.py       builds your model, and checks that it fits the data
    loss.py          tries your loss on two simulated devices
    optimizer.py   checks your optimizer, schedule and choice of parameters

docs/custom.md shows how to use your own parts.
"""
