"""Files that Python takes in the place of a module of its own, or of an installed one: a `random.py` in the current
folder. This imports nothing, because any module may be the one that is not Python's own, and it changes nothing.

What Python itself imports before the first line of a command is out of reach here: a `types.py` gives Python's own
traceback. Under the console script `pmapdp`, and `python -P -m`, the current folder is not looked in at all."""

import os
import sys

OURS = {"pmapdp", "pmapdp.lessons"}  # they may stand in a clone, beside an installed copy


def shadow(error: BaseException) -> str | None:
    """The sentence about such a file that an error passed through or that is imported, or None where there is none."""
    paths = set(filter(os.path.isdir, map(os.path.abspath, sys.path)))
    packages = {each for each in paths if each.endswith("-packages")}
    folders = {each for each in paths - packages if not each.startswith(os.path.dirname(os.path.abspath(os.__file__)))}
    installed = {name.partition(".")[0] for each in packages for name in os.listdir(each)} - {"__pycache__"}
    known = sys.stdlib_module_names | installed
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    chain: BaseException | None = error
    while chain is not None:
        files.append(getattr(chain, "path", None))
        frame = chain.__traceback__
        while frame is not None:
            files.append(frame.tb_frame.f_code.co_filename)
            frame = frame.tb_next
        chain = chain.__cause__ or chain.__context__
    absent = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in known
    if isinstance(error, ImportError) and not absent:  # C++ does not say which
        files[:0] = [os.path.join(each, name) for each in folders for name in os.listdir(each)]
    for file in map(str, files):
        if os.path.isfile(file) and not file.endswith((".py", ".so")):
            continue  # a program without such an ending, as `bin/pytest`, is no module
        module = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file.removesuffix(".py")
        name = os.path.basename(module)
        if os.path.dirname(os.path.abspath(module)) in folders and name in known - OURS:
            return (
                f"{os.path.abspath(file)} stands in the place of the module {name} ({type(error).__name__}): rename "
                "it, or move it"
            )
    return None
