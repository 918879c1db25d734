"""Save, resume, stop and log long runs, each in its own folder.

Read the files in this order:

    compile_cache.py   keeps compiled programs for the next start
    workdir.py         opens and locks the folder, and has its config.json
    checkpoints.py     saves the state with Orbax, and restores it
    same_run.py          refuses to resume if settings, data or code have changed
    code_hash.py         hashes the code of your functions for that
    progress.py        knows which epoch is the best, and if the run is done
    report.py          prints what happens, and writes it to the log
    header.py            describes the run before its first update
    metrics_files.py     writes the results as JSON and for TensorBoard
    trace.py             traces ten updates for --profile
    not_finite.py      finds the example that made a loss infinite or NaN
    saved_run.py       reads a saved run for evaluate, export and --init-from

Lesson 14 teaches them.
"""
