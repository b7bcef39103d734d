"""Secrets stand in files or variables, never in the settings; they are read anew each time they are needed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from relight.config.reading import ConfigError

SECRET_BYTES = 4096


def _names_no_setting(value: str) -> str:
    if value.upper().startswith("RELIGHT_"):
        raise ValueError("must not begin with RELIGHT_: those variables are settings")
    return value


Variable = Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$"), AfterValidator(_names_no_setting)]


def read_secret(
    file: str, variable: str, environment: Mapping[str, str] | None = None, *, key: str = "secret_file"
) -> str:
    """The secret; empty where neither a file nor a variable is named. Blocks.

    Args:
        file: whose content it is.
        variable: that holds it instead.
        environment: of the variable; None: this process's own.
        key: the setting that names the file, for errors.

    Raises:
        ConfigError: it cannot be read, is empty, or is no single line of text.
    """
    if variable:
        found = (os.environ if environment is None else environment).get(variable, "").strip()
        where = f"variable {variable}"
    elif file:
        path = Path(file).expanduser()
        where = f"{key} {path}"
        try:
            with path.open("rb") as opened:
                found = opened.read(SECRET_BYTES).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: {getattr(error, 'strerror', None) or 'is not text'}") from None
    else:
        return ""
    if not found or not found.isprintable():
        raise ConfigError(f"{where}: {'is no single line of text' if found else 'is empty or not set'}")
    return found
