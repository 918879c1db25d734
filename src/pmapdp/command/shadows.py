"""Files that Python takes in the place of a module of its own, or of an installed one: a `random.py` in the current
folder. It imports nothing at first, because any module may be the one that is not Python's own."""

import os
import sys


def shadow(error: BaseException) -> str | None:
    """The sentence about such a file that an error passed through or that is imported, or None where there is none.
    Python's own modules alone can be imported after the call, so it is for a command that ends."""
    files = [str(module.__file__) for module in tuple(sys.modules.values()) if getattr(module, "__file__", None)]
    files.append(str(getattr(error, "path", "")))
    frame = error.__traceback__
    while frame is not None:
        files.append(frame.tb_frame.f_code.co_filename)
        frame = frame.tb_next
    libraries = (os.path.dirname(os.path.abspath(os.__file__)), "site-packages", "dist-packages", "<")
    folders = {os.path.abspath(each) for each in sys.path if not any(library in each for library in libraries)}
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) not in folders]
    from importlib.metadata import packages_distributions

    names = sys.stdlib_module_names | packages_distributions().keys() - {"pmapdp", "pmapdp_lessons"}
    for file in map(os.path.abspath, files):
        module = os.path.dirname(file) if os.path.basename(file) == "__init__.py" else file.removesuffix(".py")
        folder, name = os.path.split(module)
        if folder in folders and name in names:
            return f"{file} stands in the place of the module {name} ({type(error).__name__}): rename it, or move it"
    return None
