// The services and what flows between them: one drawing for wide screens and one for phones.
import { make, makeSvg, setText } from "../lib/elements.js";

const BOX = { width: 150, height: 58 };
const WIDE = {
  name: "wide", size: [1000, 296], box: BOX,
  nodes: {
    gateway: [14, 22], conductor: [300, 22], reward: [600, 22], reference: [836, 22],
    rollout: [14, 180], buffer: [300, 180], trainer: [600, 180], store: [836, 180],
  },
  edges: {
    spec: ["M164 51H298", [231, 43, "middle"]],
    tasks: ["M334 80V128H89V172", [212, 120, "middle"]],
    sampled: ["M172 209H298", [236, 201, "middle"]],
    admitted: ["M390 178V82", [400, 134, "start"], true],
    score: ["M450 42H598", [525, 34, "middle"]],
    logprobs: ["M450 66H524V104H911V82", [718, 122, "middle"]],
    read: ["M450 209H598", [525, 201, "middle"]],
    publish: ["M750 209H834", [792, 201, "middle"]],
    load: ["M911 238V276H89V246", [500, 268, "middle"]],
  },
};
const NARROW = {
  name: "narrow", size: [344, 396], box: { width: 132, height: 54 },
  nodes: {
    gateway: [6, 6], conductor: [200, 6], reward: [6, 112], reference: [200, 112],
    rollout: [6, 226], buffer: [200, 226], store: [6, 332], trainer: [200, 332],
  },
  edges: {
    spec: ["M138 24H198", [168, 18, "middle"]],
    tasks: ["M200 46H168V206H72V218", [120, 200, "middle"]],
    sampled: ["M146 254H198", [169, 246, "middle"]],
    admitted: ["M332 244H340V32H334", [335, 88, "end"]],
    score: ["M222 60V84H72V110", [79, 98, "start"]],
    logprobs: ["M266 60V110", [260, 102, "end"]],
    read: ["M266 280V330", [260, 310, "end"]],
    publish: ["M200 360H140", [169, 352, "middle"]],
    load: ["M72 332V288", [78, 314, "start"]],
  },
};
const TITLES = {
  gateway: "gateway", conductor: "conductor", reward: "reward", reference: "reference", rollout: "rollout",
  buffer: "buffer", trainer: "trainer", store: "weight store",
};

class Drawing {
  constructor(layout) {
    const [width, height] = layout.size;
    const head = `head-${layout.name}`;
    this.stats = {};
    this.titles = {};
    this.labels = {};
    this.lines = {};
    this.boxes = {};
    this.element = makeSvg("svg", { viewBox: `0 0 ${width} ${height}`, class: `diagram ${layout.name}`, "aria-hidden": "true" });
    const arrow = makeSvg("marker", { id: head, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, makeSvg("path", { d: "M0 0.8L7 4L0 7.2z", class: "head" }));
    this.element.append(makeSvg("defs", {}, arrow));
    for (const [name, [path, , isTwoWay]] of Object.entries(layout.edges)) {
      this.lines[name] = makeSvg("path", { d: path, class: "edge", "marker-end": `url(#${head})`, "marker-start": isTwoWay ? `url(#${head})` : null });
      this.element.append(this.lines[name]);
    }
    for (const [name, position] of Object.entries(layout.nodes)) this.element.append(this.#node(name, position, layout.box));
    for (const [name, [, [x, y, anchor]]] of Object.entries(layout.edges)) {
      this.labels[name] = makeSvg("text", { x, y, "text-anchor": anchor, class: "flow" });
      this.element.append(this.labels[name]);
    }
  }

  #node(name, [x, y], { width, height }) {
    const boxes = name === "rollout" ? [[8, -8], [4, -4], [0, 0]] : [[0, 0]];
    this.boxes[name] = boxes.map(([right, down]) => makeSvg("rect", { x: x + right, y: y + down, width, height, rx: 7, class: "node" }));
    this.titles[name] = makeSvg("text", { x: x + 12, y: y + height / 2 - 5, class: "title" }, TITLES[name]);
    this.stats[name] = makeSvg("text", { x: x + 12, y: y + height / 2 + 14, class: "stat" });
    return makeSvg("g", { class: `at-${name}` }, ...this.boxes[name], this.titles[name], this.stats[name]);
  }

  set({ stats, flows, rolloutCount, usesReference, usesReward }) {
    for (const [name, text] of Object.entries(stats)) setText(this.stats[name], text);
    for (const [name, { long, short, isFlowing }] of Object.entries(flows)) {
      setText(this.labels[name], this.element.classList.contains("wide") ? long : short);
      this.lines[name].classList.toggle("flowing", Boolean(isFlowing));
    }
    setText(this.titles.rollout, rolloutCount > 1 ? `rollout × ${rolloutCount}` : "rollout");
    this.boxes.rollout.slice(0, 2).forEach((box, at) => box.classList.toggle("hidden", rolloutCount < 3 - at));
    for (const [node, edge, isUsed] of [["reference", "logprobs", usesReference], ["reward", "score", usesReward]]) {
      this.element.querySelector(`.at-${node}`).classList.toggle("idle", !isUsed);
      this.lines[edge].classList.toggle("idle", !isUsed);
    }
  }
}

export class SystemDiagram {
  #drawings = [new Drawing(WIDE), new Drawing(NARROW)];

  constructor() {
    this.description = make("p", { class: "visually-hidden" });
    this.element = make("div", { class: "diagram-box" }, ...this.#drawings.map((drawing) => drawing.element), this.description);
  }

  /** `state`: as `diagramState` returns it. The texts of the arrows are repeated for screen readers. */
  set(state) {
    this.#drawings.forEach((drawing) => drawing.set(state));
    setText(this.description, Object.values(state.flows).map(({ long }) => long).filter(Boolean).join("; "));
  }
}
