"""Classes from elsewhere: modules whose import registers models and operators of one's own."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from falconet.errors import ConfigError

_loaded: list[str] = []


def loaded_modules() -> tuple[str, ...]:
    """What was loaded so far, for a process that is started: it must load the same."""
    return tuple(_loaded)


def load_modules(names: Iterable[str]) -> None:
    """Import modules, each by its name (`shop.models`) or by its file (`models.py`), once.

    Names are looked up in the working directory too. This runs their code. Raises ConfigError for one that is not
    there, or whose own import fails.
    """
    for name in names:
        if name.endswith(".py"):
            _load_file(Path(name))
        else:
            _load_name(name)
        if name not in _loaded:
            _loaded.append(name)


def fingerprint(names: Iterable[str]) -> list[str]:
    """A hash of the file of each module, all of them loaded: another one where its code was changed."""
    found = []
    for name in names:
        file = sys.modules[Path(name).stem if name.endswith(".py") else name].__file__
        found.append(hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else name)
    return found


def _load_name(name: str) -> None:
    here = str(Path.cwd())
    sys.path.append(here)  # last: what is installed goes before
    try:
        importlib.import_module(name)
    except Exception as error:
        raise _refused(name, error) from error
    finally:
        sys.path.remove(here)


def _load_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(
            f"no module `{path}`, looked for from `{Path.cwd()}`", hint="a Python file, or a module's name"
        )
    known = sys.modules.get(path.stem)
    if known is not None and Path(getattr(known, "__file__", None) or "").resolve() == path.resolve():
        return
    if known is not None:
        raise ConfigError(
            f"`{path}` is called like the module `{path.stem}`, which is loaded", hint="another file name"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path.absolute())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[path.stem]
        raise _refused(str(path), error) from error


def _refused(name: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the module `{name}` cannot be loaded: {type(error).__name__}: {error}",
        hint="`modules` names Python modules or files whose import registers models and operators",
    )
