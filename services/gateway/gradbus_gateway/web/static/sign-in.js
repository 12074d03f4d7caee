// Exchanges the code behind the link's `#` for a session. The code never enters a server's log or the browser's history.
const message = document.querySelector("#message");
const [code, ...rest] = location.hash.slice(1).split("&");
const run = new URLSearchParams(rest.join("&")).get("run");
history.replaceState(null, "", "/sign-in");

async function signIn() {
  if (!code) return "This link has no code. Run gradbus open in a terminal to get a sign-in link.";
  try {
    const response = await fetch("/sign-in", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ code }) });
    if (response.ok) return "";
    if (response.status === 410 || response.status === 422) return "This link was used already, or is older than two minutes. Run gradbus open again for a new one.";
    const problem = await response.json().catch(() => ({}));
    return `The gateway refused the link: ${problem.detail || response.status}. Run gradbus open again.`;
  } catch {
    return "The gateway does not respond. See gradbus status, then run gradbus open again.";
  }
}

const error = await signIn();
if (error) {
  const [before, after] = error.split("gradbus open");
  const command = document.createElement("code");
  command.textContent = "gradbus open";
  message.replaceChildren(before, ...(after === undefined ? [] : [command, after]));
  document.title = "Not signed in · Gradbus";
} else {
  location.replace(run && /^[a-z0-9-]{1,63}$/.test(run) ? `/#/runs/${run}` : "/");
}
