/** The bodies of requests for what a person has chosen, and programs that send them. */

const RANGES = { from: "gte", to: "lte" };

/** Return the filter of the chosen values and ranges; null if nothing is chosen. `except` leaves out a field. */
export function filterOf(state, except = null) {
  const filter = {};
  for (const [field, values] of Object.entries(state.values)) {
    if (field !== except && values.length) filter[field] = { in: values };
  }
  for (const [field, range] of Object.entries(state.ranges)) {
    for (const [end, test] of Object.entries(RANGES)) {
      const value = range[end];
      if (value !== null && value !== undefined) filter[field] = { ...filter[field], [test]: value };
    }
  }
  return Object.keys(filter).length ? filter : null;
}

/** Return how documents are ranked, for a search or an explanation; what is the index's default is omitted. */
export function rankingOf(state, mode) {
  const ranking = { query: state.query };
  if (mode) ranking.mode = mode;
  if (state.weights && mode === state.hybrid) ranking.weights = state.weights;
  if (state.fusion && mode === state.hybrid) ranking.fusion = state.fusion;
  if (state.typing) ranking.as_you_type = true;
  const filter = filterOf(state);
  if (filter) ranking.filter = filter;
  return ranking;
}

/** Return the body of a search. */
export function searchBody(state, mode) {
  return { ...rankingOf(state, mode), k: state.k };
}

/** Return the bodies that count facets: fields with chosen values are each counted without their own filter. */
export function facetBodies(state, mode, fields) {
  const chosen = fields.filter((field) => state.values[field]?.length);
  const others = fields.filter((field) => !chosen.includes(field));
  const base = { ...rankingOf(state, mode), k: 1, ids_only: true };
  const bodies = [{ ...base, total: true, facets: others }];
  for (const field of chosen) {
    const { filter: _, ...rest } = base;
    const without = filterOf(state, field);
    bodies.push({ ...rest, facets: [field], ...(without ? { filter: without } : {}) });
  }
  return bodies;
}

/** Return a shell command that sends a search. */
export function curlLine(address, body, withKey) {
  const quoted = `'${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  const key = withKey ? ' -H "x-api-key: $LIGHTIR_KEY"' : "";
  return `curl '${address}/v1/search' -H 'content-type: application/json'${key} -d ${quoted}`;
}

/** Return a Python program that sends a search and needs the standard library alone. */
export function pythonLines(address, body, withKey) {
  const key = withKey ? ', "x-api-key": os.environ["LIGHTIR_KEY"]' : "";
  return [
    `import json${withKey ? ", os" : ""}`,
    "from urllib.request import Request, urlopen",
    "",
    `body = ${JSON.stringify(JSON.stringify(body))}`,
    `headers = {"content-type": "application/json"${key}}`,
    `answer = json.load(urlopen(Request(${JSON.stringify(`${address}/v1/search`)}, body.encode(), headers)))`,
    'for hit in answer["hits"]:',
    '    print(f"{hit[\'score\']:.4f}  {hit[\'doc_id\']}  {hit[\'title\']}")',
  ].join("\n");
}
