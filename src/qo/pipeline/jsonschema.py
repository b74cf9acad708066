"""The JSON Schema of definitions, with which editors complete and check pipelines while they are written.

It covers each field and which fields need or exclude each other. References between jobs are checked by ``qo dag
validate`` only.
"""

from __future__ import annotations

import json
from typing import Any, assert_never

from qo.pipeline.fields import DAG, JOB, REACTIVE_ONLY, SOURCE_ONLY
from qo.pipeline.kinds import (
    Anything,
    Choice,
    Field,
    Filter,
    Flag,
    Items,
    Kind,
    Record,
    Scalar,
    Table,
    Text,
    Whole,
)
from qo.pipeline.operators.built_in import BUILT_IN
from qo.pipeline.operators.spec import OperatorSpec
from qo.pipeline.sources import CODELESS_JOB, CODELESS_KINDS, SOURCES, all_source_fields

Schema = dict[str, Any]

_WITH_QUERY: Schema = {
    "properties": {"operator": {"enum": sorted(name for name, spec in BUILT_IN.items() if spec.takes_query_file)}},
    "required": ["operator"],
}
_SCALAR: Schema = {"type": ["string", "number", "boolean"]}
_SHORTHANDS = [field.name for field in JOB.fields if field.shorthand]
_CODELESS_KIND: Schema = {"enum": list(CODELESS_KINDS)}
_CODELESS_SOURCE: Schema = {
    "anyOf": [
        _CODELESS_KIND,
        {"type": "object", "properties": {"kind": _CODELESS_KIND}, "required": ["kind"]},
        {
            "type": "object",
            "properties": {"kind": False},
            "anyOf": [{"required": [field.name]} for field in all_source_fields()],
        },
    ]
}
_ONE_TYPE: list[Schema] = [{"items": {"type": name}} for name in ("string", "number", "boolean")]


def schema() -> Schema:
    """Return the schema, of draft 2020-12."""
    definitions: dict[str, Schema] = {}
    top = _record(DAG, definitions)
    job = definitions["job"]
    job["allOf"] = _job_rules(definitions)
    definitions["source"]["allOf"] = _source_rules()
    definitions["input"]["allOf"] = [
        {
            "if": {"properties": {"refresh": {"const": "on_change"}}, "required": ["refresh"]},
            "then": {"properties": {"trigger": {"const": False}}, "required": ["trigger"]},
        }
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A qo pipeline",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def text() -> str:
    """Return the schema as it is published in docs/reference/dag.schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


def _schema_of(kind: Kind, definitions: dict[str, Schema]) -> Schema:
    match kind:
        case Record():
            if kind.name not in definitions:
                definitions[kind.name] = _record(kind, definitions)
            return {"$ref": f"#/$defs/{kind.name}"}
        case Items():
            listed: Schema = {"type": "array", "items": _either(kind, definitions), "maxItems": kind.at_most}
            return {**listed, "minItems": kind.at_least, **({"uniqueItems": True} if kind.unique else {})}
        case Table():
            return {
                "type": "object",
                "propertyNames": _text(kind.keys),
                "additionalProperties": _either(kind, definitions),
                "maxProperties": kind.at_most,
            }
        case _:
            return _leaf(kind)


def _either(kind: Items | Table, definitions: dict[str, Schema]) -> Schema:
    """Return the schema of an item or value, and of the short way to write it."""
    long = _schema_of(kind.of, definitions)
    return {"anyOf": [_text(kind.short), long]} if kind.short is not None else long


def _leaf(kind: Filter | Anything | Text | Whole | Flag | Choice | Scalar) -> Schema:
    match kind:
        case Filter():
            several: Schema = {"type": "array", "minItems": 1, "maxItems": kind.at_most, "anyOf": _ONE_TYPE}
            return {"anyOf": [_SCALAR, several]}
        case Anything():
            return {"type": "object"}
        case Scalar(ordered):
            return {"type": ["string", "number"]} if ordered else _SCALAR
        case Text():
            return {"anyOf": [_text(kind), {"const": 0}]} if kind.zero else _text(kind)
        case Whole():
            return {"type": "integer", "minimum": kind.at_least, "maximum": kind.at_most}
        case Flag():
            return {"type": "boolean"}
        case Choice():
            return {"enum": list(kind.values)}
        case _:
            assert_never(kind)


def _text(kind: Text) -> Schema:
    # Editors read patterns as JavaScript does, which has no flags inside of them.
    pattern: Schema = {} if "(?i:" in kind.pattern else {"pattern": f"^(?:{kind.pattern})$"}
    return {"type": "string", **pattern, "maxLength": kind.chars_max}


def _record(kind: Record, definitions: dict[str, Schema]) -> Schema:
    schema_: Schema = {
        "type": "object",
        "description": kind.help,
        "properties": {field.name: _property(field, definitions) for field in kind.fields},
        "additionalProperties": False,
    }
    required = [field.name for field in kind.fields if field.required and not field.derived]
    if required:
        schema_["required"] = required
    if kind.one_of:
        schema_["oneOf"] = [{"required": [name]} for name in kind.one_of]
    return schema_


def _property(field: Field, definitions: dict[str, Schema]) -> Schema:
    schema_: Schema = {"description": field.help, **_schema_of(field.kind, definitions)}
    if field.short:
        ways = [_schema_of(kind, definitions) for kind in (*field.short, field.kind)]
        schema_ = {"description": field.help, "anyOf": ways}
    if field.default is not None:
        schema_["default"] = field.default
    return schema_


def _source_rules() -> list[Schema]:
    """Return the rules by which each kind of source has its own fields."""
    every = {name for spec in SOURCES.values() for name in spec.config.by_name}
    rules: list[Schema] = []
    for kind, spec in SOURCES.items():
        required = tuple(field.name for field in spec.config.fields if field.required)
        rule = _when({"kind": {"const": kind.value}}, required, every - spec.config.by_name.keys())
        if spec.config.one_of:
            rule["then"]["oneOf"] = [{"required": [name]} for name in spec.config.one_of]
        rules.append(rule)
    return rules


def _job_rules(definitions: dict[str, Schema]) -> list[Schema]:
    """Return the rules for fields of a job that need or exclude each other."""
    return [
        _when({"activation": {"const": "source"}}, SOURCE_ONLY[0], {*REACTIVE_ONLY[0], *REACTIVE_ONLY[1]}),
        _when({"activation": {"const": "reactive"}}, (), {*SOURCE_ONLY[0], *SOURCE_ONLY[1]}),
        _when({"source": {}}, (), {"inputs", *_SHORTHANDS}),
        _when({"update_strategy": {"const": "append"}}, ("unique_key",), set()),
        _when({"update_strategy": {"const": "replace"}}, (), {"unique_key"}),
        {"if": {"required": ["udf"]}, "then": {"properties": {"secrets": False, "runtime": {"const": "lambda"}}}},
        _when({"operator": {"const": "udf"}}, ("udf",), set()),
        *(_config_rule(spec, spec.config, definitions) for spec in BUILT_IN.values() if spec.config is not None),
        {
            **_when({"source": _CODELESS_SOURCE}, (), set()),
            "then": {"properties": {name: {"const": only} for name, only in CODELESS_JOB.items()}},
            "else": {"oneOf": [{"required": [name]} for name in ("operator", *_SHORTHANDS)]},
        },
        # Every job says what starts it: a source, inputs, or a query that names its inputs.
        {"anyOf": [*({"required": [name]} for name in ("source", "inputs", *_SHORTHANDS)), _WITH_QUERY]},
    ]


def _config_rule(spec: OperatorSpec, config: Record, definitions: dict[str, Schema]) -> Schema:
    """Return the rule for the config of a built-in operator."""
    rule = _when({"operator": {"const": spec.name}}, ("config",) if spec.needs_config else (), set())
    rule["then"]["properties"] = {"config": _record(config, definitions)}
    return rule


def _when(condition: Schema, required: tuple[str, ...], forbidden: set[str]) -> Schema:
    then: Schema = {}
    if required:
        then["required"] = list(required)
    if forbidden:
        then["properties"] = {name: False for name in sorted(forbidden)}
    return {"if": {"properties": condition, "required": list(condition)}, "then": then}
