"""Starts a program of ours in a Python that neither its environment nor the folder it is started in can lead astray."""

import sys


def isolated(module: str) -> tuple[str, ...]:
    """Arguments of Python that run `main()` of a module of Relight.

    -I ignores PYTHONPATH, by which this very process may have found Relight: what it has found is passed on.
    """
    paths = [path for path in sys.path if path]
    return ("-I", "-c", f"import sys; sys.path[:] = {paths!r}; from {module} import main; main()")
