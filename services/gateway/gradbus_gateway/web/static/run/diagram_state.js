// The numbers that the system diagram shows, from a run, its history and its workers.
import { number, percent, FINAL } from "../lib/format.js";
import { groupSize, readsRewards, trainsGiven, usesReferenceLogprobs } from "../lib/run_kind.js";

/** The state that `SystemDiagram.set` takes. */
export function diagramState(run, history, workers, shares) {
  const { schedule, reward } = run.spec;
  const isGiven = trainsGiven(run.spec);
  const isScored = readsRewards(run.spec);
  // One without rewards may judge held-out rows.
  const usesReward = !isGiven && !reward.model && (isScored || Boolean(run.spec.data.eval));
  const isOver = FINAL.has(run.state);
  const rates = history.rates(isOver);
  const rollouts = workers.filter((worker) => worker.role === "rollout");
  const trainers = workers.filter((worker) => worker.role === "trainer");
  // Heartbeats are newer than the run's status.
  const version = Math.max(run.progress.version, ...workers.map((worker) => worker.version));
  const groups = rates && rates.steps * schedule.groups_per_step;
  const samples = groups && groups * groupSize(run.spec);
  const asks = [reward.model && "scores", usesReferenceLogprobs(run.spec) && "log-probabilities"].filter(Boolean).join(", ");
  // Of given responses the reference service computes the held-out loss too.
  const usesReference = Boolean(asks) || Boolean(isGiven && run.spec.data?.eval);
  const claimed = rollouts.reduce((sum, worker) => sum + worker.claims.length, 0);
  const flow = (value, long, short) => ({ long: value ? `${number(value, 1)} ${long}` : "", short: value ? `${number(value, 1)}${short}` : "", isFlowing: Boolean(value) && !isOver });
  const nothing = { long: "", short: "", isFlowing: false };
  const shortOnly = (flow) => ({ ...flow, long: flow.short });
  return {
    rolloutCount: rollouts.length,
    usesReference,
    usesReward,
    stats: {
      gateway: "REST, web UI",
      conductor: run.state.replaceAll("_", " "),
      reward: !usesReward ? "not used" : reward.service ? "your service" : isOver ? "idle" : `busy ${percent(shares.score)}`,
      reference: !usesReference ? "not used" : isOver ? "idle" : `busy ${percent(Math.max(shares.reference, reward.model ? shares.score : 0))}`,
      rollout: isOver ? "idle" : !rollouts.length ? "no worker" : isGiven ? "reads the rows" : `busy ${percent(shares.generate)}`,
      buffer: isOver ? "archived" : claimed ? `${claimed} groups ${isGiven ? "reading" : "sampling"}` : "experience log",
      trainer: isOver ? `${run.progress.step} steps` : trainers.length ? `waits ${percent(shares.wait)}` : "no trainer",
      store: version >= 0 ? `version ${version}` : "no version yet",
    },
    flows: {
      spec: { long: "spec, desired state", short: "spec", isFlowing: false },
      tasks: flow(groups, isGiven ? "rows/s" : "prompts/s", "/s"),
      sampled: flow(samples, isGiven ? "responses/s" : "samples/s", "/s"),
      admitted: { long: groups ? `${isScored ? "scored, " : ""}admitted once` : "", short: "", isFlowing: Boolean(groups) && !isOver },
      score: !usesReward || !isScored ? nothing : flow(samples, "scores/s", "/s scored"),
      logprobs: asks ? flow(samples, `${asks}/s`, "/s") : nothing,
      read: flow(groups, "groups/s", "/s"),
      publish: shortOnly(flow(rates?.steps, "", "/s")),
      load: isGiven ? nothing : loadFlow(version, rollouts, run.state),
    },
  };
}

function loadFlow(version, rollouts, state) {
  if (version < 0) return { long: "", short: "", isFlowing: false };
  if (FINAL.has(state)) return { long: `${state === "succeeded" ? "final" : "last"} version ${version}`, short: `v${version}`, isFlowing: false };
  const loaded = rollouts.map((worker) => worker.version).filter((one) => one >= 0);
  if (!loaded.length) return { long: `version ${version}, not loaded by any worker yet`, short: `v${version}`, isFlowing: false };
  const [low, high] = [Math.min(...loaded), Math.max(...loaded)];
  const range = low === high ? `${low}` : `${low} to ${high}`;
  return { long: `workers run version ${range}`, short: `v${range} loaded`, isFlowing: true };
}
