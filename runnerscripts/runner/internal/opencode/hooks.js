// Runs the hooks of the agent's profile. A command gets a JSON object on standard
// input. Before a tool is used, the exit status 2 keeps it from being used; after
// that, it adds to what the model is told; standard error says why. Any other
// status but 0 is only told.
import { spawn } from "node:child_process"

const most = 64 * 1024 // bytes of standard error that are kept

function matches(hook, event, tool) {
  if (hook.event !== event) return false
  if (!hook.tools) return true
  return hook.tools.some((pattern) => {
    const escaped = pattern.replace(/[.+^${}()|[\]\\]/g, "\\$&").replace(/\*/g, ".*")
    return new RegExp(`^${escaped}$`).test(tool)
  })
}

function run(hook, input, cwd) {
  return new Promise((resolve) => {
    const env = { ...process.env }
    delete env.OPENCODE_SERVER_PASSWORD
    const child = spawn("/bin/sh", ["-c", hook.command], { cwd, env, detached: true, stdio: ["pipe", "ignore", "pipe"] })
    let said = ""
    let late = false
    const timer = setTimeout(() => {
      late = true
      try {
        process.kill(-child.pid, "SIGKILL")
      } catch {} // it has just ended
    }, hook.timeout * 1000)
    child.stderr.on("data", (data) => {
      if (said.length < most) said += data
    })
    const end = (result) => {
      clearTimeout(timer)
      resolve(result)
    }
    child.on("error", (error) => end({ status: -1, why: String(error) }))
    child.on("close", (status) => {
      if (late) return end({ status: -1, why: `it took longer than ${hook.timeout} s` })
      end({ status, why: said.trim() || `exit status ${status}` })
    })
    child.stdin.on("error", () => {}) // it need not read
    child.stdin.end(JSON.stringify(input))
  })
}

export const AgentenvHooks = async ({ client, directory }) => {
  async function all(event, call, more, blocked) {
    for (const hook of hooks.filter((h) => matches(h, event, call.tool))) {
      const input = { hook_event_name: event, session_id: call.sessionID, cwd: directory, tool_name: call.tool, tool_use_id: call.callID, ...more }
      const { status, why } = await run(hook, input, directory)
      if (status === 2) blocked(why)
      else if (status !== 0)
        await client.tui.showToast({ body: { title: "hook", message: `the ${event} hook ${JSON.stringify(hook.command)} failed: ${why}`, variant: "error" } })
    }
  }
  return {
    "tool.execute.before": (call, { args }) =>
      all("PreToolUse", call, { tool_input: args }, (why) => {
        throw new Error(why)
      }),
    "tool.execute.after": (call, output) => {
      const response = output.output ?? output.content
      return all("PostToolUse", call, { tool_input: call.args, tool_response: response }, (why) => {
        if (Array.isArray(output.content)) output.content.push({ type: "text", text: why })
        else output.output += `\n\n${why}`
      })
    },
  }
}
