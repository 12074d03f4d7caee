import { make } from "./elements.js";
export async function showSample({ root }) { root.append(make("p", {}, "later")); }
