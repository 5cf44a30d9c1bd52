// An executor that lets a model write a file, through the variables of the gateway.
import { readFileSync, writeFileSync } from "node:fs";

const { parameters } = JSON.parse(readFileSync(0, "utf8"));
const say = (type, payload) => console.log(JSON.stringify({ type, payload }));
const messages = [{ role: "user", content: parameters.prompt }];
for (;;) {
  const answer = await fetch(`${process.env.ANTHROPIC_BASE_URL}/v1/messages`, {
    method: "POST",
    headers: { "content-type": "application/json", "x-api-key": process.env.ANTHROPIC_API_KEY },
    body: JSON.stringify({
      model: "claude-sonnet-4-5", max_tokens: 1000, messages,
      tools: [{ name: "Write", description: "Write a file", input_schema: { type: "object" } }],
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
      say("tool_call", { toolCallId: call.id, title: "Write a file", kind: "edit", status: "in_progress" });
      writeFileSync(call.input.file_path, call.input.content);
      say("tool_call_update", { toolCallId: call.id, status: "completed" });
      return { type: "tool_result", tool_use_id: call.id, content: "ok" };
    }),
  });
}
