// A reward service over plain HTTP, in Node without packages: node reward.js [PORT]
const http = require("node:http");

function score({ sample_id, response, item, finish_reason }) {
  const right = item.answer;
  const digits = [...right].filter((digit, at) => response[at] === digit).length / right.length;
  const exact = Number(response === right && finish_reason === "stop");
  return { sample_id, status: "ok", reward: 0.5 * digits + 0.5 * exact, components: { digits, exact } };
}

const server = http.createServer((request, answer) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    if (request.url !== "/score") return answer.writeHead(request.url === "/readyz" ? 200 : 404).end();
    try {
      const { samples } = JSON.parse(Buffer.concat(parts));
      answer.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify({ results: samples.map(score) }));
    } catch (error) {
      answer.writeHead(400).end(String(error));
    }
  });
});

server.listen(Number(process.argv[2] ?? 9000));
process.on("SIGTERM", () => server.close());
