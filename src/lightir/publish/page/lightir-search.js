/**
 * The element <lightir-search> over the index that is published in this folder:
 *
 *     <script type="module" src="/search/lightir-search.js"></script>
 *     <lightir-search></lightir-search>
 *
 * See page/lightir-search.js for attributes and events. `src` names the folder of another publication.
 */

import { setDefaultBackend } from "./page/backend.js";
import { PublishedBackend } from "./published/backend.js";

const HERE = new URL(".", import.meta.url);

setDefaultBackend((address) => new PublishedBackend(address === null ? HERE : new URL(address, document.baseURI)));
export const { LightirSearch } = await import("./page/lightir-search.js");
