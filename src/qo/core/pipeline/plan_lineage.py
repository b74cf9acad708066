"""Column lineage from an analysed plan of Spark, in the JSON that Spark makes of it.

A plan is a list of nodes in pre-order, each with its class and the number of its children, and expressions are lists of
the same form. Every attribute has an id that is unique in its plan. So lineage is one walk from the leaves to the root,
with the origin of each attribute that a node passes on. What Spark cannot see into, such as a
function over whole frames, makes its columns unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from qo.core.pipeline.column_lineage import STRENGTH, How, Lineage, Origin, Source, merge_origins

# Nodes that put out what their first child does.
_SAME = frozenset(
    {
        "CTERelationDef",
        "CollectMetrics",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "EventTimeWatermark",
        "Except",
        "Filter",
        "GlobalLimit",
        "Intersect",
        "LocalLimit",
        "Offset",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sample",
        "Sort",
        "Subquery",
        "SubqueryAlias",
        "Tail",
        "View",
        "WithWatermark",
    }
)
_CONSTANT = frozenset({"LocalRelation", "OneRowRelation", "Range"})
_LEFT_ONLY = ("LeftSemi$", "LeftAnti$")  # Joins whose output is that of their left side.

# Nodes that put out expressions, and the field that has these.
_EXPRESSIONS = {"Project": "projectList", "Aggregate": "aggregateExpressions", "Window": "windowExpressions"}

Scope = dict[int, Origin | None]  # By attribute, in the order of the output; None: unknown.


@dataclass(frozen=True, slots=True)
class Node:
    kind: str  # The last part of its class.
    fields: Mapping[str, Any]
    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class InputColumns:
    """The columns of an input, as its own plan has them."""

    name: str
    attributes: Mapping[int, str]  # Names by id, of what the input's frame has.
    leaf: tuple[str, ...]  # The columns of its relation: Spark gives it other ids where a plan has it twice.


def read_plan(nodes: Sequence[Mapping[str, Any]]) -> Node:
    """Return the tree of a plan or expression."""
    # From the last node to the first, each finds its children on the stack.
    stack: list[Node] = []
    for each in reversed(nodes):
        count = each["num-children"]
        children = tuple(stack.pop() for _ in range(count))
        stack.append(Node(str(each["class"]).rpartition(".")[2], each, children))
    (root,) = stack
    return root


def input_columns(name: str, plan: Node) -> InputColumns:
    leaf = plan
    while leaf.children:
        leaf = leaf.children[0]
    columns = _Walk(()).scope(plan, {})
    names = _names(plan)
    return InputColumns(
        name,
        {id_: names.get(id_, "") for id_ in columns},
        tuple(_attribute_names(leaf.fields.get("output") or ())),
    )


def find_lineage(plan: Node, columns: Sequence[str], inputs: Sequence[InputColumns]) -> Lineage:
    """Return the lineage of a frame's columns, which are named in the order of the plan's output."""
    walk = _Walk(inputs)
    scope = walk.scope(plan, {})
    if len(scope) != len(columns):
        return Lineage({}, unknown=("the columns of the plan are not those of the output",))
    visible = {
        name: dict(origin) for name, origin in zip(columns, scope.values(), strict=True) if origin is not None
    }
    return Lineage(visible, frozenset(walk.rows), tuple(walk.unknown))


@dataclass(slots=True)
class _Walk:
    inputs: Sequence[InputColumns]
    rows: set[tuple[Source, How]] = field(default_factory=set[tuple[Source, How]])
    unknown: dict[str, None] = field(default_factory=dict[str, None])
    ctes: dict[int, Scope] = field(default_factory=dict[int, Scope])
    by_id: dict[int, Source] = field(default_factory=dict[int, Source])

    def __post_init__(self) -> None:
        for each in self.inputs:
            self.by_id |= {id_: Source(each.name, column) for id_, column in each.attributes.items()}

    def scope(self, node: Node, outer: Scope) -> Scope:
        """Return the origins of what a node puts out. ``outer``: of the query around a subquery."""
        scope = self._scope(node, outer)
        # An attribute of an input's frame is a column of the input, whatever the frame is made from.
        return {
            id_: {self.by_id[id_]: How.IDENTITY} if not origin and id_ in self.by_id else origin
            for id_, origin in scope.items()
        }

    def _scope(self, node: Node, outer: Scope) -> Scope:
        if node.kind == "WithCTE":
            for each in node.children[:-1]:
                self.ctes[each.fields["id"]] = self.scope(each, outer)
            return self.scope(node.children[-1], outer)
        below = [self.scope(each, outer) for each in node.children]
        visible: Scope = {}
        for each in below:
            visible |= each
        self._note_rows(node, visible, outer)
        if node.kind in _EXPRESSIONS:
            own = self._scope_of_expressions(node.fields[_EXPRESSIONS[node.kind]], visible, outer)
            return visible | own if node.kind == "Window" else own
        if node.kind in _SAME or (node.kind == "Join" and _join_type(node).endswith(_LEFT_ONLY)):
            return below[0]
        if node.kind == "Join":
            return visible
        return self._own(node, below, visible, outer)

    def _own(self, node: Node, below: Sequence[Scope], visible: Scope, outer: Scope) -> Scope:
        """Return the origins of what a node puts out that its children do not have."""
        match node.kind:
            case _ if node.kind in _CONSTANT:
                return {id_: {} for id_ in _ids(node.fields.get("output") or ())}
            case "Union":
                return _side_by_side(list(below[0]), below)
            case "Generate":
                origin = self._origin(read_plan(node.fields["generator"]), visible, outer)
                items = _at_least(How.TRANSFORMATION, origin)
                return visible | dict.fromkeys(_ids(node.fields["generatorOutput"]), items)
            case "Expand":
                return self._expanded(node, visible, outer)
            case "CTERelationRef":
                return self._referenced(node)
            case _:
                return self._leaf_or_opaque(node)

    def _note_rows(self, node: Node, visible: Scope, outer: Scope) -> None:
        """Note the columns that decide which rows there are."""
        match node.kind:
            case "Filter":
                self._decide(How.FILTER, [node.fields["condition"]], visible, outer)
            case "Join" if node.fields.get("condition"):
                self._decide(How.JOIN, [node.fields["condition"]], visible, outer)
            case "Aggregate":
                self._decide(How.GROUP_BY, node.fields["groupingExpressions"], visible, outer)
            case "Deduplicate":
                self._decide(How.GROUP_BY, node.fields["keys"], visible, outer)
            case "Sort":
                self._decide(How.SORT, node.fields["order"], visible, outer)
            case "Distinct" | "Except" | "Intersect":
                how = How.GROUP_BY if node.kind == "Distinct" else How.JOIN
                self.rows |= {(source, how) for origin in visible.values() for source in origin or ()}
            case _:
                pass

    def _decide(self, how: How, expressions: Iterable[Any], visible: Scope, outer: Scope) -> None:
        for each in expressions:
            self.rows |= {(source, how) for source in self._origin(read_plan(each), visible, outer) or ()}

    def _scope_of_expressions(self, expressions: Sequence[Any], visible: Scope, outer: Scope) -> Scope:
        trees = [read_plan(each) for each in expressions]
        return {_id(tree): self._origin(tree, visible, outer) for tree in trees}

    def _expanded(self, node: Node, visible: Scope, outer: Scope) -> Scope:
        scope: Scope = {}
        for at, id_ in enumerate(_ids(node.fields["output"])):
            origins = [self._origin(read_plan(each[at]), visible, outer) for each in node.fields["projections"]]
            scope[id_] = _together(origins)
        return scope

    def _referenced(self, node: Node) -> Scope:
        ids, definition = _ids(node.fields["output"]), self.ctes.get(node.fields["cteId"])
        if definition is None or len(definition) != len(ids):
            return self._opaque(node, "it reads a query that refers to itself")
        return dict(zip(ids, definition.values(), strict=True))

    def _leaf_or_opaque(self, node: Node) -> Scope:
        ids, names = (
            _ids(node.fields.get("output") or ()),
            tuple(_attribute_names(node.fields.get("output") or ())),
        )
        if node.children or (ids and all(id_ in self.by_id for id_ in ids)):
            return self._opaque(node, f"it has a step that cannot be looked into: {node.kind}")
        alike = [each.name for each in self.inputs if each.leaf == names]
        if len(alike) == 1:
            return {id_: {Source(alike[0], name): How.IDENTITY} for id_, name in zip(ids, names, strict=True)}
        reason = "inputs with the same columns" if alike else "something that is no input of the job"
        return self._opaque(node, f"it reads {reason}: {node.kind}")

    def _opaque(self, node: Node, reason: str) -> Scope:
        ids = _ids(node.fields.get("output") or ())
        if not all(id_ in self.by_id for id_ in ids):
            self.unknown[reason] = None
        return dict.fromkeys(ids)

    def _origin(self, tree: Node, visible: Scope, outer: Scope) -> Origin | None:
        match tree.kind:
            case "AttributeReference":
                id_ = _id(tree)
                return visible.get(id_, outer.get(id_))
            case "Alias" | "OuterReference" | "SortOrder":
                inner: Any = tree.fields.get("e")
                if isinstance(inner, list):
                    return self._origin(read_plan(cast("list[dict[str, Any]]", inner)), {}, outer | visible)
                return self._origin(tree.children[0], visible, outer) if tree.children else {}
            case _:
                pass
        parts = [self._origin(each, visible, outer) for each in tree.children]
        subquery: Any = tree.fields.get("plan")
        if isinstance(subquery, list):
            plan = read_plan(cast("list[dict[str, Any]]", subquery))
            parts += self.scope(plan, outer | visible).values()
        how = How.AGGREGATION if tree.kind == "AggregateExpression" else How.TRANSFORMATION
        if tree.kind == "WindowSpecDefinition":
            together = _together(parts)
            return None if together is None else dict.fromkeys(together, How.WINDOW)
        return _at_least(how, _together(parts))


def _side_by_side(ids: Sequence[int], scopes: Sequence[Scope]) -> Scope:
    columns = zip(*(list(each.values()) for each in scopes), strict=True)
    return {id_: _together(origins) for id_, origins in zip(ids, columns, strict=True)}


def _together(origins: Iterable[Origin | None]) -> Origin | None:
    every = list(origins)
    return (
        None if any(each is None for each in every) else merge_origins(each for each in every if each is not None)
    )


def _at_least(how: How, origin: Origin | None) -> Origin | None:
    """Return an origin whose values take part at least so: what only orders rows stays so."""
    if origin is None:
        return None
    return {
        source: way if way is How.WINDOW or STRENGTH[way] > STRENGTH[how] else how
        for source, way in origin.items()
    }


def _join_type(node: Node) -> str:
    type_: Any = node.fields.get("joinType")
    return str(cast("dict[str, Any]", type_).get("object", "")) if isinstance(type_, dict) else ""


def _id(tree: Node) -> int:
    return int(tree.fields["exprId"]["id"])


def _ids(attributes: Iterable[Any]) -> list[int]:
    return [int(each[0]["exprId"]["id"]) for each in attributes]


def _attribute_names(attributes: Iterable[Any]) -> list[str]:
    return [str(each[0]["name"]) for each in attributes]


def _names(plan: Node) -> dict[int, str]:
    """Return the names of a frame's columns by id, from the topmost node that lists them."""
    node = plan
    while True:
        listed = node.fields.get("projectList") or node.fields.get("output")
        if listed:
            return {int(each[0]["exprId"]["id"]): str(each[0]["name"]) for each in listed}
        if not node.children:
            return {}
        node = node.children[0]
