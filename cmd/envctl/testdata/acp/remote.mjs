// A client made of the official SDK, which works with a server over one of its transports, loses its
// connection while the agent asks, and goes on over another one. It prints what it was told as JSON.
//
//   node remote.mjs MODULES ws|http URL TOKEN
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules, transport, url, token] = process.argv.slice(2);
const { resolve } = createRequire(join(modules, "package.json"));
const load = (name) => import(pathToFileURL(resolve("@agentclientprotocol/sdk" + name)));
const acp = await load("");
const { createHttpStream } = await load("/experimental/http-client");
const { createWebSocketStream } = await load("/experimental/ws-client");
const { agent, client } = acp.methods;

const headers = { Authorization: "Bearer " + token };
// The WebSocket of Node.js takes headers in its second argument.
class Socket extends WebSocket {
  constructor(to, protocols, options) {
    super(to, { protocols, ...options });
  }
}
const open = () =>
  transport === "ws"
    ? createWebSocketStream(url.replace("http", "ws"), { headers, WebSocket: Socket })
    : createHttpStream(url, { headers });

const cwd = "/home/me/project";
const report = { connections: [], stops: [], errors: [] };

// connected runs work with a connection. asked answers the agent's requests.
async function connected(asked, work) {
  const told = { updates: [], asked: [] };
  report.connections.push(told);
  const app = acp
    .client({ name: "test" })
    .onNotification(client.session.update, ({ params }) => {
      told.updates.push(params);
    })
    .onRequest(client.session.requestPermission, ({ params }) => {
      told.asked.push(params);
      return asked(params.options);
    });
  await app.connectWith(open(), async (ctx) => {
    told.initialized = await ctx.request(agent.initialize, { protocolVersion: acp.PROTOCOL_VERSION, clientCapabilities: {} });
    await work(ctx, told);
  });
}
const prompt = (text) => [{ type: "text", text }];
const refused = async (request) => {
  try {
    await request;
  } catch ({ code, message, data }) {
    report.errors.push({ code, message, data });
  }
};

let sessionId;
let isAsked;
const question = new Promise((done) => (isAsked = done));
await connected(
  () => {
    isAsked();
    return new Promise(() => {}); // it never answers
  },
  async (ctx, told) => {
    report.session = await ctx.request(agent.session.new, { cwd, mcpServers: [] });
    sessionId = report.session.sessionId;
    report.stops.push((await ctx.request(agent.session.prompt, { sessionId, prompt: prompt("work") })).stopReason);
    await refused(ctx.request(agent.session.load, { sessionId, cwd: "/elsewhere", mcpServers: [] }));
    await refused(ctx.request(agent.session.load, { sessionId: "none", cwd, mcpServers: [] }));
    ctx.request(agent.session.prompt, { sessionId, prompt: prompt("ask") }).catch(() => {});
    await question;
  },
);

let allow;
const answer = new Promise((done) => (allow = done));
await connected(
  (options) => answer.then(() => ({ outcome: { outcome: "selected", optionId: options.find((o) => o.kind === "allow_once").optionId } })),
  async (ctx, told) => {
    report.listed = (await ctx.request(agent.session.list, { cwd })).sessions;
    await ctx.request(agent.session.load, { sessionId, cwd, mcpServers: [] });
    await refused(ctx.request(agent.session.prompt, { sessionId, prompt: prompt("too early") }));
    allow();
    const said = () => told.updates.map(({ update }) => update.content?.text ?? "").join("");
    while (!said().includes("allowed")) await new Promise((more) => setTimeout(more, 20));
    await ctx.request(agent.session.close, { sessionId });
    await ctx.request(agent.session.resume, { sessionId, cwd, mcpServers: [] });
    report.stops.push((await ctx.request(agent.session.prompt, { sessionId, prompt: prompt("and now?") })).stopReason);
    for (const id of [sessionId, sessionId]) await ctx.request(agent.session.delete, { sessionId: id });
    report.left = (await ctx.request(agent.session.list, {})).sessions;
  },
);
console.log(JSON.stringify(report));
process.exit(0);
