// An editor made of the official client of the Agent Client Protocol, which checks
// every message against the protocol's schema. It starts an agent, plays a few
// prompts, and prints what it was told as JSON.
//
//   node client.mjs MODULES FOLDER COMMAND [ARG...]
//
// MODULES is the folder whose node_modules has the client; FOLDER is the session's.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { join } from "node:path";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [modules, cwd, ...command] = process.argv.slice(2);
const { resolve } = createRequire(join(modules, "package.json"));
const acp = await import(pathToFileURL(resolve("@agentclientprotocol/sdk")));
const { agent, client } = acp.methods;

const child = spawn(command[0], command.slice(1), { stdio: ["pipe", "pipe", "inherit"] });
const ended = new Promise((done) => child.on("exit", (code, signal) => done(code ?? signal)));

const report = { updates: [], asked: [], stops: [], errors: [] };
const toDo = {}; // what to do when the agent asks, and when a command runs

const app = acp
  .client({ name: "test" })
  .onNotification(client.session.update, ({ params }) => {
    report.updates.push(params);
    if (params.update.status === "in_progress") toDo.running?.();
  })
  .onRequest(client.session.requestPermission, ({ params }) => {
    report.asked.push(params);
    return toDo.asked(params.options);
  });
const choose = (kind) => (options) => ({
  outcome: { outcome: "selected", optionId: options.find((o) => o.kind === kind).optionId },
});

const stream = acp.ndJsonStream(Writable.toWeb(child.stdin), Readable.toWeb(child.stdout));
await app.connectWith(stream, async (ctx) => {
  report.initialized = await ctx.request(agent.initialize, {
    protocolVersion: acp.PROTOCOL_VERSION,
    clientCapabilities: { fs: { readTextFile: true, writeTextFile: true }, terminal: true },
    clientInfo: { name: "test", version: "1" },
  });
  report.session = await ctx.request(agent.session.new, { cwd, mcpServers: [] });
  const { sessionId } = report.session;
  const say = async (text, ...more) => {
    const prompt = [{ type: "text", text }, ...more];
    const { stopReason } = await ctx.request(agent.session.prompt, { sessionId, prompt });
    report.stops.push(stopReason);
  };
  const refused = async (method, params) => {
    try {
      await ctx.request(method, params);
    } catch ({ code, message }) {
      report.errors.push({ code, message });
    }
  };

  await say(
    "work on ",
    { type: "resource_link", name: "main.go", uri: pathToFileURL(join(cwd, "cmd/main.go")).href },
    { type: "resource", resource: { uri: pathToFileURL(join(cwd, "notes.txt")).href, text: "remember the milk" } },
  );
  toDo.asked = choose("allow_once");
  await say("ask for allowed.txt");
  toDo.asked = choose("reject_once");
  await say("ask for denied.txt");
  toDo.running = () => ctx.notify(agent.session.cancel, { sessionId });
  await say("sleep");
  toDo.running = undefined;
  toDo.asked = () => {
    ctx.notify(agent.session.cancel, { sessionId });
    return { outcome: { outcome: "cancelled" } };
  };
  await say("ask for cancelled.txt");
  await ctx.request(agent.session.setMode, { sessionId, modeId: "bypassPermissions" });
  await say("ask for unasked.txt");
  await refused(agent.session.prompt, { sessionId: "none", prompt: [{ type: "text", text: "x" }] });
  await refused(agent.session.new, { cwd: "relative", mcpServers: [] });
  await refused(agent.session.setMode, { sessionId, modeId: "sideways" });
  await say("work on");
  await ctx.request(agent.session.close, { sessionId });
});
child.stdin.end();
report.exit = await ended;
console.log(JSON.stringify(report));
