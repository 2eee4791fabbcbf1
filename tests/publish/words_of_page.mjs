/** Prints what the page's script makes of texts: {"stems": [...], "ids": [...], "vocabulary": [...], "tokenizer": {...}}. */

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder] = process.argv.slice(2);
const { englishStem } = await import(pathToFileURL(`${folder}/english.js`));
const { WordPiece } = await import(pathToFileURL(`${folder}/wordpiece.js`));
const { stems, ids, vocabulary, tokenizer } = JSON.parse(readFileSync(0, "utf-8"));
const pieces = new WordPiece(vocabulary, tokenizer);
process.stdout.write(JSON.stringify({ stems: stems.map(englishStem), ids: ids.map((text) => pieces.encode(text)) }));
