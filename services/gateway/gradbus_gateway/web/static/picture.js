// From a run, its history and its workers to what the loop's picture says.
import { number, percent, FINAL } from "./words.js";

/** The state that `Loop.set` takes. */
export function picture(run, history, workers, shares) {
  const { schedule, rollout, algorithm, trainer } = run.spec;
  const isOver = FINAL.has(run.state);
  const rates = history.rates(isOver);
  const rollouts = workers.filter((worker) => worker.role === "rollout");
  const trainers = workers.filter((worker) => worker.role === "trainer");
  // What workers say is newer than the run's status.
  const version = Math.max(run.progress.version, ...workers.map((worker) => worker.version));
  const groups = rates && rates.steps * schedule.groups_per_step;
  const samples = groups && groups * rollout.group_size;
  const asksReference = algorithm.kl > 0 && !trainer.lora;
  const claimed = rollouts.reduce((sum, worker) => sum + worker.claims.length, 0);
  const flow = (value, long, short) => ({ long: value ? `${number(value, 1)} ${long}` : "", short: value ? `${number(value, 1)}${short}` : "", moves: Boolean(value) && !isOver });
  const slim = (flow) => ({ ...flow, long: flow.short });
  return {
    workers: rollouts.length,
    asks: { reference: asksReference },
    facts: {
      gateway: "you are here",
      conductor: run.state.replaceAll("_", " "),
      reward: run.spec.reward.service ? "your service" : isOver ? "idle" : `busy ${percent(shares.score)}`,
      reference: asksReference ? `kl ${number(algorithm.kl)}` : "not asked",
      rollout: isOver ? "idle" : rollouts.length ? `busy ${percent(shares.generate)}` : "no worker",
      buffer: isOver ? "archived" : claimed ? `${claimed} groups to come` : "experience log",
      trainer: isOver ? `${run.progress.step} steps` : trainers.length ? `waits ${percent(shares.wait)}` : "no trainer",
      store: version >= 0 ? `version ${version}` : "no version yet",
    },
    flows: {
      spec: { long: "spec, wishes", short: "spec", moves: false },
      tasks: flow(groups, "prompts/s", "/s"),
      sampled: flow(samples, "samples/s", "/s"),
      judged: { long: groups ? "judged, let in once" : "", short: "", moves: Boolean(groups) && !isOver },
      score: flow(samples, "scores/s", "/s scored"),
      logprobs: asksReference ? flow(samples, "log-probabilities/s", "/s") : { long: "", short: "", moves: false },
      read: flow(groups, "groups/s", "/s"),
      publish: slim(flow(rates?.steps, "", "/s")),
      active: active(version, rollouts, isOver),
    },
  };
}

function active(version, rollouts, isOver) {
  if (version < 0) return { long: "", short: "", moves: false };
  if (isOver) return { long: `version ${version} is the last`, short: `v${version}`, moves: false };
  const held = rollouts.map((worker) => worker.version).filter((one) => one >= 0);
  if (!held.length) return { long: `version ${version}, held by no worker yet`, short: `v${version}`, moves: false };
  const [low, high] = [Math.min(...held), Math.max(...held)];
  const span = low === high ? `${low}` : `${low} to ${high}`;
  return { long: `workers hold version ${span}`, short: `v${span} held`, moves: true };
}
