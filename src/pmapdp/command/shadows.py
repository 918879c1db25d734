"""Files that Python takes in the place of a module of its own, or of an installed one: a `random.py` in the current
folder. It imports nothing at first, because any module may be the one that is not Python's own."""

import os
import sys


def shadow(error: BaseException) -> str | None:
    """The sentence about such a file that an error passed through or that is imported, or None where there is none.
    Python's own modules alone can be imported after the call, so it is for a command that ends."""
    libraries = (os.path.dirname(os.path.abspath(os.__file__)), "site-packages", "dist-packages")
    folders = {os.path.abspath(each) for each in sys.path if not any(library in each for library in libraries)}
    folders = set(filter(os.path.isdir, folders))
    files = {str(module.__file__): name for name, module in sys.modules.items() if getattr(module, "__file__", None)}
    chain: BaseException | None = error
    while chain is not None:
        files.setdefault(str(getattr(chain, "path", "")), "")
        frame = chain.__traceback__
        while frame is not None:
            files.setdefault(frame.tb_frame.f_code.co_filename, "")
            frame = frame.tb_next
        chain = chain.__cause__ or chain.__context__
    if isinstance(error, ImportError):  # C++ does not say which
        files = {os.path.join(each, name): "" for each in folders for name in os.listdir(each)} | files
    found = []
    for file, loaded in files.items():
        module = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file.removesuffix(".py")
        if os.path.dirname(os.path.abspath(module)) in folders:
            found.append((os.path.abspath(file), os.path.basename(module)))
            sys.modules.pop(loaded, None)
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) not in folders]
    from importlib.metadata import packages_distributions

    names = sys.stdlib_module_names | packages_distributions().keys() - {"pmapdp", "pmapdp_lessons"}
    for file, name in found:
        if name in names:
            return f"{file} stands in the place of the module {name} ({type(error).__name__}): rename it, or move it"
    return None
