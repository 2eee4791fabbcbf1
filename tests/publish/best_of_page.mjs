/** Prints the best documents of changing scores, as the page's script chooses them: one list after each change. */

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [folder] = process.argv.slice(2);
const { ChangingBest } = await import(pathToFileURL(`${folder}/fusion.js`));
const cases = JSON.parse(readFileSync(0, "utf-8"));
const answers = cases.map(({ scores, k, spare, changes }) => {
  const changing = Float64Array.from(scores);
  const chosen = new ChangingBest(changing, k, spare);
  return changes.map((change) => {
    for (const [document, score] of change) changing[document] = score;
    chosen.change(change.map(([document]) => document));
    return chosen.list();
  });
});
process.stdout.write(JSON.stringify(answers));
