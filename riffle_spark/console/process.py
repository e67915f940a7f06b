"""The command `riffle` as a process of its own."""

import sys

from riffle_spark.console.main import main

_WITHOUT_PANDAS = ("state", "stores", "where")
"""Commands that use Arrow, and run no code of users."""


class _HidePandas:
    """Makes ``import pandas`` fail as if it were not installed.

    pyarrow imports pandas, if it is installed, to make the first array. That is a third of the time of ``riffle state
    show``. Once pyarrow has failed to import pandas, it does not try again, so this is only for processes that end.
    """

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise ``ModuleNotFoundError`` for pandas."""
        if fullname == "pandas":
            raise ModuleNotFoundError("The command does not use pandas.", name=fullname)


def run() -> None:
    """Run the command that the arguments of this process name."""
    if sys.argv[1:2] and sys.argv[1] in _WITHOUT_PANDAS:
        sys.meta_path.insert(0, _HidePandas())
    main()
