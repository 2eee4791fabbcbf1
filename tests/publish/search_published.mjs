/**
 * Searches a published folder as a browser does, with files in place of a host.
 *
 *     node search_published.mjs SITE [whole|ranges] < requests.json > answers.json
 *
 * A request is [method, argument] of the backend. With "whole" the host ignores ranges. Each answer has the milliseconds,
 * the bytes and the number of requests that it took.
 */

import { readFile } from "node:fs/promises";
import { readFileSync } from "node:fs";
import { fileURLToPath, pathToFileURL } from "node:url";
import { resolve } from "node:path";

const [site, host = "ranges"] = process.argv.slice(2);
const address = pathToFileURL(`${resolve(site)}/`);
let waited = 0; // milliseconds

globalThis.fetch = async (url, { headers = {} } = {}) => {
  const began = performance.now();
  const content = await readFile(fileURLToPath(url)).catch(() => null);
  waited += performance.now() - began;
  if (content === null) return new Response("", { status: 404 });
  const range = host === "ranges" ? headers.range?.match(/^bytes=(\d+)-(\d+)$/) : null;
  return range ? new Response(content.subarray(Number(range[1]), Number(range[2]) + 1), { status: 206 }) : new Response(content);
};

const { PublishedBackend } = await import(new URL("published/backend.js", address));
const backend = new PublishedBackend(address);
const answers = [];
for (const [method, argument] of JSON.parse(readFileSync(0, "utf-8"))) {
  const [began, bytes, requests] = [performance.now(), backend.store.transferred, backend.store.requests];
  const cpu = process.cpuUsage();
  const answer = await backend[method](argument).catch((error) => ({ error: error.message, status: error.status ?? null }));
  const { user, system } = process.cpuUsage(cpu);
  answers.push({
    answer,
    ms: performance.now() - began,
    cpu_ms: (user + system) / 1000,
    bytes: backend.store.transferred - bytes,
    requests: backend.store.requests - requests,
  });
}
process.stdout.write(JSON.stringify(answers));
