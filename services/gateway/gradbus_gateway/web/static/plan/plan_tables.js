// A plan as tables: the memory of each process by part, the ways to divide the cards, and what other settings would save.
import { make } from "../lib/elements.js";
import { duration, plural } from "../lib/format.js";

const GIB = 2 ** 30;
const PLACEMENTS = {
  separate: "Cards of their own",
  shared: "One card, side by side",
  timed: "One card, in turns",
  together: "One machine",
};

export const size = (bytes) => (bytes >= GIB / 10 ? `${(bytes / GIB).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`);

export function planTables(plan) {
  return [
    make("p", {}, `${plan.model.architecture}, ${plural(plan.card.count, "card")} of ${size(plan.card.memory)}: ${plan.card.name}`),
    ...plan.tenants.map(tenantTable),
    plan.divisions.length === 0 && make("p", { class: "note warn" }, "Too few cards: trainer and engine have one each."),
    plan.divisions.length > 0 && table("What a step takes", ["Placement", "Trainer", "Rollouts", "A step", "Generate", "Train"], plan.divisions.map(divisionRow)),
    plan.changes.length > 0 && table("With another setting", ["Setting", "Process", "Memory"], plan.changes.map((change) => [change.setting, change.tenant, size(change.bytes)])),
  ].filter(Boolean);
}

function tenantTable(tenant) {
  const rows = tenant.parts.map((part) => [part.name, size(part.bytes)]);
  return table(`Memory of the ${tenant.name}: ${size(tenant.bytes)}`, ["Part", "Memory"], rows);
}

function divisionRow({ placement, trainers, rollouts, fits, rooms, seconds }) {
  const lacking = Math.max(...rooms.map((room) => room.needed - room.available));
  const step = fits ? duration(seconds.step) : `does not fit: ${size(lacking)} too much`;
  return [PLACEMENTS[placement] ?? placement, `${trainers}`, `${rollouts}`, step, duration(seconds.generate), duration(seconds.train)];
}

function table(caption, head, rows) {
  const cells = (tag, texts, scope) => texts.map((text) => make(tag, { scope }, text));
  return make(
    "table", {},
    make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...cells("th", head, "col"))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells("td", row)))),
  );
}
