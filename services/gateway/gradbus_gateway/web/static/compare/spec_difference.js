// What differs between specs: field by field, as rows of a table.

/** The fields of a spec by their path. A field that is null, or an empty table or list, counts as one that is not there. */
export function fieldsOf(value, path = "", found = new Map()) {
  if (value === null || value === undefined) return found;
  const isNested = typeof value === "object" && !(Array.isArray(value) && value.every((item) => item === null || typeof item !== "object"));
  if (isNested) for (const [name, part] of Object.entries(value)) fieldsOf(part, path ? `${path}.${name}` : name, found);
  else if (!Array.isArray(value) || value.length) found.set(path, typeof value === "string" ? value : JSON.stringify(value));
  return found;
}

/** The fields in which specs differ, but for the name: [{field, values}] in the order of the specs; null where a spec has none. */
export function differences(specs) {
  const all = specs.map((spec) => fieldsOf(spec));
  const fields = [...new Set(all.flatMap((fields) => [...fields.keys()]))].filter((field) => field !== "name");
  return fields.map((field) => ({ field, values: all.map((fields) => fields.get(field) ?? null) })).filter(({ values }) => new Set(values).size > 1);
}
