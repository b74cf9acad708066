/** A type of Spark, as it is written in SQL. */

const SQL: Record<string, string> = { long: "bigint", integer: "int", short: "smallint", byte: "tinyint" };

export function typeText(type: unknown): string {
  if (typeof type === "string") return SQL[type] ?? type;
  if (typeof type !== "object" || type === null) return "";
  const { type: kind, elementType, keyType, valueType, fields } = type as Record<string, unknown>;
  if (kind === "array") return `array<${typeText(elementType)}>`;
  if (kind === "map") return `map<${typeText(keyType)}, ${typeText(valueType)}>`;
  if (kind === "struct" && Array.isArray(fields))
    return `struct<${fields.map((each) => `${each.name}: ${typeText(each.type)}`).join(", ")}>`;
  return typeof kind === "string" ? kind : "";
}
