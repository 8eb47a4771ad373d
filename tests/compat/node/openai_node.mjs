// One call of the package openai for Node. Arguments: base URL, model, API, call. Exits with 1 when it fails.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import assert from "node:assert";

const [baseURL, model, api, call] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const Person = z.object({ name: z.string(), age: z.int().min(0).max(150), mood: z.enum(["calm", "angry"]).nullable() });
const City = z.object({ city: z.enum(["Paris", "Rome"]) });
const ask = { role: "user", content: "Alice Moore is 34 years old." };
const tool = zodFunction({ name: "look_up", parameters: City });
const flat = { type: "function", ...tool.function };
const response_format = zodResponseFormat(Person, "person");
const text = { format: zodTextFormat(Person, "person") };
const structured_outputs = { choice: ["yes", "no"] };
const thinking = { thinking: true, finish_within_budget: true, structured_outputs };
const reasoning = { effort: "low" };
const ids = ["call_0", "call_1"];
const city = JSON.stringify({ city: "Paris" });

const chat = (messages, fields) => client.chat.completions.parse({ model, messages, temperature: 0, max_tokens: 300, ...fields });
const respond = (input, fields) => client.responses.parse({ model, input, temperature: 0, max_output_tokens: 300, ...fields });
const called = (calls, read) => {
  assert(calls.length > 0);
  for (const one of calls) City.parse(read(one));
};
const chatCalls = ids.map((id) => ({ id, type: "function", function: { name: "look_up", arguments: city } }));
const chatResults = (content) => ids.map((tool_call_id) => ({ role: "tool", tool_call_id, content }));
const results = (output) => ids.map((call_id) => ({ type: "function_call_output", call_id, output }));
const calls = ids.map((call_id) => ({ type: "function_call", call_id, name: "look_up", arguments: city }));

const chatTests = {
  text: async () => assert((await chat([ask], { max_tokens: 16 })).choices[0].message.content.length > 0),
  object: async () => {
    const { message } = (await chat([ask], { response_format })).choices[0];
    Person.parse(message.parsed);
    await chat([ask, message, ask], { max_tokens: 16 });
  },
  streamed_object: async () => {
    const stream = client.chat.completions.stream({ model, temperature: 0, messages: [ask], response_format });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    Person.parse(message.parsed);
    await chat([ask, message, ask], { max_tokens: 16 });
  },
  tool_results: async () => {
    const { message } = (await chat([ask], { tools: [tool], tool_choice: "required" })).choices[0];
    called(message.tool_calls, (one) => one.function.parsed_arguments);
    const told = message.tool_calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: "large" }));
    await chat([ask, message, ...told], { max_tokens: 16 });
  },
  parallel_calls: async () => {
    const fields = { tools: [tool], tool_choice: "required", parallel_tool_calls: true };
    const stream = client.chat.completions.stream({ model, temperature: 0, messages: [ask], max_tokens: 300, ...fields });
    const { message } = (await stream.finalChatCompletion()).choices[0];
    called(message.tool_calls, (one) => one.function.parsed_arguments);
    await chat([ask, { role: "assistant", tool_calls: chatCalls }, ...chatResults("large")], { max_tokens: 16 });
  },
  error_results: async () => {
    const told = chatResults([{ type: "text", text: "Error: no such city." }]);
    await chat([ask, { role: "assistant", tool_calls: chatCalls }, ...told], { tools: [tool], max_tokens: 16 });
  },
  reasoning_echo: async () => {
    const { message } = (await chat([ask], thinking)).choices[0];
    assert(message.reasoning_content.length > 0);
    await chat([ask, message, ask], { max_tokens: 16 });
  },
  tools_beside_an_object: async () => {
    const { message } = (await chat([ask], { tools: [tool], response_format })).choices[0];
    if (message.tool_calls?.length) called(message.tool_calls, (one) => one.function.parsed_arguments);
    else Person.parse(message.parsed);
  },
};
const responsesTests = {
  text: async () => assert((await respond([ask], { max_output_tokens: 16 })).output_text.length > 0),
  object: async () => {
    const { output_parsed, output } = await respond([ask], { text });
    Person.parse(output_parsed);
    await respond([ask, ...output, ask], { max_output_tokens: 16 });
  },
  streamed_object: async () => {
    const stream = client.responses.stream({ model, temperature: 0, input: [ask], text });
    Person.parse((await stream.finalResponse()).output_parsed);
  },
  tool_results: async () => {
    const { output } = await respond([ask], { tools: [flat], tool_choice: "required" });
    called(output, (one) => JSON.parse(one.arguments));
    const told = output.map(({ call_id }) => ({ type: "function_call_output", call_id, output: "large" }));
    await respond([ask, ...output, ...told], { max_output_tokens: 16 });
  },
  parallel_calls: async () => {
    const fields = { tools: [flat], tool_choice: "required", parallel_tool_calls: true };
    const stream = client.responses.stream({ model, temperature: 0, input: [ask], max_output_tokens: 300, ...fields });
    called((await stream.finalResponse()).output, (one) => JSON.parse(one.arguments));
    await respond([ask, ...calls, ...results("large")], { max_output_tokens: 16 });
  },
  error_results: async () => {
    const told = results([{ type: "input_text", text: "Error: no such city." }]);
    await respond([ask, ...calls, ...told], { tools: [flat], max_output_tokens: 16 });
  },
  reasoning_echo: async () => {
    const { output } = await respond([ask], { include: ["reasoning.encrypted_content"], reasoning, structured_outputs });
    assert.equal(output[0].type, "reasoning");
    await respond([ask, ...output, ask], { max_output_tokens: 16 });
  },
  tools_beside_an_object: async () => {
    const { output, output_parsed } = await respond([ask], { tools: [flat], text });
    const made = output.filter((one) => one.type === "function_call");
    if (made.length > 0) called(made, (one) => JSON.parse(one.arguments));
    else Person.parse(output_parsed);
  },
};
await { chat: chatTests, responses: responsesTests }[api][call]();
