import { make } from "./elements.js";
export async function showSamples({ root }) { root.append(make("p", {}, "later")); }
