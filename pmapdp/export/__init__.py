"""For using a trained model elsewhere: one portable file. `python -m pmapdp.export WORKDIR model.zip` writes it."""
