// One call of the AI SDK by one of its models. Arguments: base URL, model, API, call. Exits with 1 when it fails.
import { generateText, streamText, Output, tool, jsonSchema } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createAnthropic } from "@ai-sdk/anthropic";
import assert from "node:assert";

const [baseURL, name, api, call] = process.argv.slice(2);
const apiKey = "none";
const openai = createOpenAI({ baseURL, apiKey });
const model = {
  chat: () => openai.chat(name),
  responses: () => openai.responses(name),
  "chat (openai-compatible)": () =>
    createOpenAICompatible({ name: "turnstile", baseURL, apiKey, supportsStructuredOutputs: true })(name),
  messages: () => createAnthropic({ baseURL, apiKey })(name),
}[api]();
const closed = (properties) =>
  jsonSchema({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });
const output = Output.object({ schema: closed({ name: { type: "string", maxLength: 9 } }) });
const city = closed({ city: { type: "string", enum: ["Paris", "Rome"] } });
const tools = { look_up: tool({ description: "Looks a city up.", inputSchema: city }) };
const ask = { role: "user", content: "Alice Moore is 34 years old." };
// Without it the provider refers to items of earlier responses by their ids, and nothing is stored.
const providerOptions = { openai: { store: false } };
const given = { model, messages: [ask], maxOutputTokens: 300, maxRetries: 0, temperature: 0, providerOptions };
const short = { ...given, maxOutputTokens: 16 };
const named = (value) => assert.equal(typeof value.name, "string");
const called = (calls) => {
  assert(calls.length > 0);
  for (const one of calls) assert(["Paris", "Rome"].includes(one.input.city));
};
const twoCalls = (output) => {
  const ids = ["call_0", "call_1"];
  const asked = ids.map((toolCallId) => ({
    type: "tool-call", toolCallId, toolName: "look_up", input: { city: "Paris" },
  }));
  const results = ids.map((toolCallId) => ({ type: "tool-result", toolCallId, toolName: "look_up", output }));
  return [ask, { role: "assistant", content: asked }, { role: "tool", content: results }];
};

await {
  text: async () => {
    const { text, finishReason } = await generateText(short);
    assert.equal(typeof text, "string"); // may be empty: the toy model ends at once behind thoughts left out
    assert(["stop", "length"].includes(finishReason));
  },
  object: async () => {
    const { output: value, response } = await generateText({ ...given, output });
    named(value);
    await generateText({ ...short, messages: [ask, ...response.messages, ask] });
  },
  streamed_object: async () => {
    let last;
    for await (const part of streamText({ ...given, output }).partialOutputStream) last = part;
    named(last);
  },
  tool_results: async () => {
    const { toolCalls, response } = await generateText({ ...given, tools, toolChoice: "required" });
    called(toolCalls);
    const results = toolCalls.map(({ toolCallId, toolName }) => ({
      type: "tool-result", toolCallId, toolName, output: { type: "json", value: { size: "large" } },
    }));
    const messages = [ask, ...response.messages, { role: "tool", content: results }];
    await generateText({ ...short, messages, tools });
  },
  parallel_calls: async () => {
    const stream = streamText({ ...given, tools, toolChoice: "required" });
    called(await stream.toolCalls);
    await generateText({ ...short, messages: twoCalls({ type: "text", value: "large" }), tools });
  },
  error_results: async () => {
    await generateText({ ...short, messages: twoCalls({ type: "error-text", value: "No such city." }), tools });
    await generateText({ ...short, messages: twoCalls({ type: "error-json", value: { code: 7 } }), tools });
  },
  reasoning_echo: async () => {
    const thoughts = { type: "reasoning", text: "Hm." };
    if (api === "responses") thoughts.providerOptions = { openai: { itemId: "rs_1", reasoningEncryptedContent: null } };
    if (api === "messages") thoughts.providerOptions = { anthropic: { signature: "" } };
    const messages = [ask, { role: "assistant", content: [thoughts, { type: "text", text: "Yes." }] }, ask];
    await generateText({ ...short, messages });
  },
  tools_beside_an_object: async () => {
    const result = await generateText({ ...given, tools, output });
    if (result.toolCalls.length > 0) called(result.toolCalls);
    else named(result.output);
  },
}[call]();
