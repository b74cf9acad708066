"""What a command is given: the path of a file, or ``module:attribute`` of a pipeline declared in Python."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from qo.core.flow.dag import Dag
from qo.dispatcher.definition.declare import Pipeline
from qo.dispatcher.definition.reading import read
from qo.dispatcher.definition.writing import to_yaml
from qo.dispatcher.registry import DEFAULT, FUNCTION, Registry
from qo.errors import QoError, UsageError

SUFFIXES = (".yaml", ".yml", ".json")


def load(
    target: str, *, registry: Registry = DEFAULT, known_datasets: Callable[[str], bool] | None = None
) -> tuple[Dag, str]:
    """The resolved DAG and the text of its definition; of a declared one, the YAML that says the same.

    Raises UsageError for what cannot be opened or imported, and DefinitionError for what is wrong in it.
    """
    if target.endswith(SUFFIXES) or Path(target).is_file():
        text = _text(target)
        return read(text, file=target, registry=registry, known_datasets=known_datasets), text
    if not FUNCTION.match(target):
        raise UsageError(f"{target!r} is no definition: give a file ({', '.join(SUFFIXES)}) or module:pipeline")
    dag = _pipeline(target).document(registry=registry, known_datasets=known_datasets)
    return dag, to_yaml(dag)


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text in UTF-8: save it as such") from error
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}; give the path of a definition"
        ) from error


def _pipeline(target: str) -> Pipeline:
    module_name, _, attribute = target.partition(":")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # As for python -m.
    try:
        found: object = importlib.import_module(module_name)
    except QoError:
        raise  # It says itself what to do.
    except Exception as error:
        message = f"importing {module_name!r} failed: {type(error).__name__}: {error}"
        raise UsageError(
            f"{message}; start in the directory that it is in, and see that it can be imported"
        ) from error
    for name in attribute.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, Pipeline):
        raise UsageError(f"{target!r} is no pipeline: name a qo.Pipeline as module:attribute")
    return found
