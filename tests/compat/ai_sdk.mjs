// The AI SDK with its three providers: text, object, streamed object, a tool, and tools beside an object.
import { generateText, streamText, Output, tool, jsonSchema } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { createAnthropic } from "@ai-sdk/anthropic";

const [baseURL, model] = process.argv.slice(2);
const apiKey = "none";
const openai = createOpenAI({ baseURL, apiKey });
const models = {
  chat: openai.chat(model),
  responses: openai.responses(model),
  compatible: createOpenAICompatible({ name: "t", baseURL, apiKey, supportsStructuredOutputs: true })(model),
  anthropic: createAnthropic({ baseURL, apiKey })(model),
};
const schema = jsonSchema({
  type: "object",
  properties: { name: { type: "string", maxLength: 9 } },
  required: ["name"],
  additionalProperties: false,
});
const tools = { save: tool({ description: "Saves a name.", inputSchema: schema }) };
const output = Output.object({ schema });
const prompt = "Alice Moore is 34 years old.";

for (const [name, one] of Object.entries(models)) {
  const given = { model: one, prompt, maxOutputTokens: 300, maxRetries: 0, temperature: 0 };
  const calls = {
    text: async () => (await generateText({ ...given, maxOutputTokens: 8 })).text.length > 0,
    object: async () => typeof (await generateText({ ...given, output })).output.name === "string",
    "streamed object": async () => {
      let last;
      for await (const part of streamText({ ...given, output }).partialOutputStream) last = part;
      return typeof last.name === "string";
    },
    tool: async () => {
      const { toolCalls } = await generateText({ ...given, tools, toolChoice: "required" });
      return toolCalls.length > 0 && typeof toolCalls[0].input.name === "string";
    },
    "tools beside an object": async () => {
      const result = await generateText({ ...given, tools, output });
      return result.toolCalls.length > 0 || typeof result.output.name === "string";
    },
  };
  for (const [call, run] of Object.entries(calls)) {
    const right = await run().catch((error) => String(error.message ?? error).slice(0, 300));
    console.log(JSON.stringify([name, call, right]));
  }
}
