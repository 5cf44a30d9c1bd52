// An executor that lets a model write files and run commands, through the variables of the gateway.
import { execSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";

const tools = {
  Write({ file_path, content }) {
    mkdirSync(dirname(file_path), { recursive: true });
    writeFileSync(file_path, content);
  },
  Bash({ command }) {
    execSync(command);
  },
};

const { parameters } = JSON.parse(readFileSync(0, "utf8"));
const say = (type, payload) => console.log(JSON.stringify({ type, payload }));
const messages = [{ role: "user", content: parameters.prompt }];
for (;;) {
  const answer = await fetch(`${process.env.ANTHROPIC_BASE_URL}/v1/messages`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-api-key": process.env.ANTHROPIC_API_KEY },
    body: JSON.stringify({
      model: "claude-sonnet-4-5", max_tokens: 1000, messages,
      tools: Object.keys(tools).map((name) => ({ name, description: name, input_schema: { type: "object" } })),
    }),
  });
  if (!answer.ok) throw new Error(`the model answers ${answer.status}: ${await answer.text()}`);
  const { content } = await answer.json();
  messages.push({ role: "assistant", content });
  const calls = content.filter((c) => c.type === "tool_use");
  if (calls.length === 0) {
    console.log(content.map((c) => c.text ?? "").join(""));
    break;
  }
  messages.push({
    role: "user",
    content: calls.map((call) => {
      say("tool_call", { toolCallId: call.id, title: call.name, kind: call.name === "Write" ? "edit" : "execute", status: "in_progress" });
      tools[call.name](call.input);
      say("tool_call_update", { toolCallId: call.id, status: "completed" });
      return { type: "tool_result", tool_use_id: call.id, content: "ok" };
    }),
  });
}
