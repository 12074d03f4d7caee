// Exchanges the code behind the link's `#` for a session. The code never reaches a server's log or the browser's history.
const says = document.querySelector("#says");
const [code, ...rest] = location.hash.slice(1).split("&");
const run = new URLSearchParams(rest.join("&")).get("run");
history.replaceState(null, "", "/sign-in");

async function signIn() {
  if (!code) return "This is where sign-in links lead. Run gradbus open in a terminal to get one.";
  try {
    const answer = await fetch("/sign-in", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }) });
    if (answer.ok) return "";
    if (answer.status === 410 || answer.status === 422) return "This link was used already, or is older than two minutes. Run gradbus open again for a new one.";
    const problem = await answer.json().catch(() => ({}));
    return `The gateway refused the link: ${problem.detail || answer.status}. Run gradbus open again.`;
  } catch {
    return "The gateway does not answer. See gradbus status, then run gradbus open again.";
  }
}

const trouble = await signIn();
if (trouble) {
  const [before, after] = trouble.split("gradbus open");
  const command = document.createElement("code");
  command.textContent = "gradbus open";
  says.replaceChildren(before, ...(after === undefined ? [] : [command, after]));
  document.title = "Not signed in · Gradbus";
} else {
  location.replace(run && /^[a-z0-9-]{1,63}$/.test(run) ? `/#/runs/${run}` : "/");
}
