"""Your data, model, loss and optimizer, fitted to the trainer or refused.

A file for each part, in the order in which `train.py` asks for them. What passes its
check is trusted from there on.

    data.py        makes a `DataSet` of your data, for the batches
    arrays.py        checks an array of it, and converts it to JAX's type
    map_style.py     reads examples one by one, if your data set does
    images.py        reads images in folders, one by one
    model.py       builds your model, for the step, and checks it and its loss
    loss.py          tries the loss on two simulated devices
    optimizer.py   checks your optimizer, schedule and choice of parameters

docs/custom.md shows how to use it.
"""
