// The official library for node.

import assert from "node:assert/strict";

import OpenAI, { toFile } from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import * as harness from "./harness.mjs";

const { ask, check, failure, lacks, lines, target, untilIdle } = harness;
const Person = z.object({ name: z.string(), age: z.number().int() });
const RESULTS = { get_weather: lines.DEGREES, get_time: lines.CLOCK };
const functions = [
  { name: "get_weather", parameters: lines.WEATHER_SCHEMA, strict: true },
  { name: "get_time", parameters: lines.TIME_SCHEMA, strict: true },
];
const tools = functions.map((each) => ({ type: "function", function: each }));
const flatTools = functions.map((each) => ({ type: "function", ...each }));

/** A client of the scripted server, without retries. */
function connect(options = {}) {
  return new OpenAI({ baseURL: target.url, apiKey: target.key, maxRetries: 0, ...options });
}

/** Fields of a chat of one turn. */
function chat(prompt, fields = {}) {
  return { model: target.model, messages: [{ role: "user", content: prompt }], ...fields };
}

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

function text(chunks, index = 0) {
  const choices = chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index);
  return choices.map((choice) => choice.delta.content ?? "").join("");
}

check("chat", async () => {
  const answer = await connect().chat.completions.create(chat(ask("hello", { size: 3 })));
  const [choice] = answer.choices;
  assert.deepEqual([choice.message.content, choice.finish_reason], [lines.HELLO, "stop"]);
  assert.equal(answer.usage.completion_tokens, target.num_hello_tokens);
  assert.equal(answer.usage.prompt_tokens_details.cached_tokens, target.num_cached_tokens);
  assert(answer._request_id);
});

check("stream", async () => {
  for (const size of [1, 2, 50]) {
    const chunks = await all(await connect().chat.completions.create(chat(ask("hello", { size }), { stream: true })));
    assert.equal(text(chunks), lines.HELLO);
    const reasons = chunks.map((chunk) => chunk.choices[0].finish_reason).filter(Boolean);
    assert.deepEqual(reasons, ["stop"]);
    const helped = connect().chat.completions.stream(chat(ask("hello", { size })));
    assert.equal(await helped.finalContent(), lines.HELLO);
  }
});

check("stream-usage", async () => {
  const fields = { stream: true, stream_options: { include_usage: true } };
  const chunks = await all(await connect().chat.completions.create(chat(ask("hello"), fields)));
  const last = chunks.pop();
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.completion_tokens, target.num_hello_tokens);
  assert(chunks.every((chunk) => chunk.usage == null));
});

check("async", async () => {
  const client = connect();
  const calls = Array.from({ length: 8 }, () => client.chat.completions.create(chat(ask("hello"))));
  const said = (await Promise.all(calls)).map((answer) => answer.choices[0].message.content);
  assert.deepEqual(said, Array(8).fill(lines.HELLO));
});

check("history", async () => {
  for (const role of ["system", "developer"]) {
    const messages = [
      { role, content: lines.INSTRUCTIONS },
      { role: "user", content: ask("hello") },
      { role: "assistant", content: lines.HELLO },
      { role: "user", content: [{ type: "text", text: ask("obey") }] },
    ];
    const answer = await connect().chat.completions.create({ model: target.model, messages });
    assert.equal(answer.choices[0].message.content, lines.OBEYED);
  }
});

check("choices", async () => {
  const wanted = ["Choice 0.", "Choice 1.", "Choice 2."];
  const answer = await connect().chat.completions.create(chat(ask("choices"), { n: 3 }));
  assert.deepEqual(answer.choices.map((choice) => choice.message.content), wanted);
  const chunks = await all(await connect().chat.completions.create(chat(ask("choices"), { n: 3, stream: true })));
  assert.deepEqual([0, 1, 2].map((index) => text(chunks, index)), wanted);
});

check("logprobs", async () => {
  const fields = { logprobs: true, top_logprobs: 2 };
  const { content } = (await connect().chat.completions.create(chat(ask("hello"), fields))).choices[0].logprobs;
  assert.equal(Buffer.from(content.flatMap((token) => token.bytes)).toString(), lines.HELLO);
  assert(content.every((token) => token.top_logprobs.length === 2));
});

check("thinking", async () => {
  const { message } = (await connect().chat.completions.create(chat(ask("think")))).choices[0];
  assert.deepEqual([message.reasoning_content, message.content], [lines.THOUGHT, lines.HELLO]);
});

function runCall(name, args) {
  const wanted = { get_weather: lines.WEATHER, get_time: lines.TIME };
  assert.deepEqual(JSON.parse(args), wanted[name]);
  return RESULTS[name];
}

function results(message) {
  const run = ({ id, function: called }) => ({
    role: "tool",
    tool_call_id: id,
    content: runCall(called.name, called.arguments),
  });
  return [message, ...message.tool_calls.map(run)];
}

async function roundTrip(prompt, streams) {
  const complete = async (fields) => {
    const request = { model: target.model, tools, ...fields };
    if (!streams) return (await connect().chat.completions.create(request)).choices[0];
    return (await connect().chat.completions.stream(request).finalChatCompletion()).choices[0];
  };
  const asked = [{ role: "user", content: prompt }];
  const called = await complete({ messages: asked });
  assert.equal(called.finish_reason, "tool_calls");
  return (await complete({ messages: [...asked, ...results(called.message)] })).message.content;
}

check("tools", async () => assert.equal(await roundTrip(ask("weather"), false), lines.FORECAST));

check("tools-stream", async () => {
  for (const size of [1, 3, 200]) assert.equal(await roundTrip(ask("weather", { size }), true), lines.FORECAST);
});

check("parallel-tools", async () => {
  for (const streams of [false, true]) assert.equal(await roundTrip(ask("parallel"), streams), lines.BOTH);
});

check("forced-tool", async () => {
  for (const tool_choice of [{ type: "function", function: { name: "get_weather" } }, "required"]) {
    const answer = await connect().chat.completions.create(chat(ask("weather"), { tools, tool_choice }));
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(runCall(call.function.name, call.function.arguments), lines.DEGREES);
  }
});

check("structured", async () => {
  const fields = { response_format: zodResponseFormat(Person, "person") };
  const answer = await connect().chat.completions.parse(chat(ask("person"), fields));
  assert.deepEqual(answer.choices[0].message.parsed, lines.PERSON);
});

check("structured-stream", async () => {
  const fields = { response_format: zodResponseFormat(Person, "person") };
  const answer = await connect().chat.completions.stream(chat(ask("person"), fields)).finalChatCompletion();
  assert.deepEqual(answer.choices[0].message.parsed, lines.PERSON);
});

check("completions", async () => {
  const fields = { model: target.model, prompt: ask("hello"), max_tokens: 64 };
  const client = connect();
  assert.equal((await client.completions.create(fields)).choices[0].text, lines.HELLO);
  const chunks = await all(await client.completions.create({ ...fields, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), lines.HELLO);
});

check("embeddings", async () => {
  const fields = { model: target.model, input: lines.TEXTS };
  const vectors = (await connect().embeddings.create(fields)).data.map((entry) => entry.embedding);
  const answer = await connect().embeddings.create({ ...fields, encoding_format: "float" });
  const floats = answer.data.map((entry) => entry.embedding);
  assert(vectors.every((vector) => Math.abs(Math.hypot(...vector) - 1) < 1e-5));
  assert.deepEqual(vectors.map((vector) => vector.length), lines.TEXTS.map(() => lines.NUM_DIMENSIONS));
  assert(vectors.flat().every((value, at) => Math.abs(value - floats.flat()[at]) < 1e-6));
});

check("batches", async () => {
  const client = connect();
  const requests = Object.entries(lines.BATCH_CHATS).map(([custom_id, prompt]) =>
    JSON.stringify({ custom_id, method: "POST", url: "/v1/chat/completions", body: chat(prompt) }),
  );
  const file = await client.files.create({
    file: await toFile(Buffer.from(requests.join("\n")), "chats.jsonl"),
    purpose: "batch",
  });
  let batch = await client.batches.create({
    input_file_id: file.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
  });
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await harness.sleep(50);
    batch = await client.batches.retrieve(batch.id);
  }
  assert.equal(batch.status, "completed");
  const output = await (await client.files.content(batch.output_file_id)).text();
  const results = output.trim().split("\n").map((line) => JSON.parse(line));
  const said = results.map((result) => [result.custom_id, result.response.body.choices[0].message.content]);
  assert.deepEqual(Object.fromEntries(said), lines.BATCH_RESULTS);
});

check("responses", async () => {
  const client = connect();
  const made = await client.responses.create({ model: target.model, input: ask("think") });
  assert.deepEqual([made.output_text, made.status], [lines.HELLO, "completed"]);
  assert.equal((await client.responses.retrieve(made.id)).output_text, lines.HELLO);
  await client.responses.delete(made.id);
  await failure(OpenAI.NotFoundError, () => client.responses.retrieve(made.id));
  const format = zodTextFormat(Person, "person");
  const parsed = await client.responses.parse({ model: target.model, input: ask("person"), text: { format } });
  assert.deepEqual(parsed.output_parsed, lines.PERSON);
});

check("responses-stream", async () => {
  const stream = connect().responses.stream({ model: target.model, input: ask("hello") });
  const kinds = (await all(stream)).map((event) => event.type);
  assert.deepEqual([kinds[0], kinds.at(-1)], ["response.created", "response.completed"]);
  assert.equal((await stream.finalResponse()).output_text, lines.HELLO);
});

check("responses-tools", async () => {
  const create = (fields) => connect().responses.create({ model: target.model, tools: flatTools, ...fields });
  const called = await create({ input: ask("parallel") });
  const input = called.output.map((call) => ({
    type: "function_call_output",
    call_id: call.call_id,
    output: runCall(call.name, call.arguments),
  }));
  assert.equal((await create({ input, previous_response_id: called.id })).output_text, lines.BOTH);
});

check("responses-state", async () => {
  const create = (fields) => connect().responses.create({ model: target.model, ...fields });
  const first = await create({ input: ask("hello") });
  assert.equal((await create({ input: ask("recall") })).output_text, lines.FORGOT);
  const second = await create({ input: ask("recall"), previous_response_id: first.id });
  assert.equal(second.output_text, lines.RECALLED);
});

check("models", async () => {
  const client = connect();
  assert.deepEqual((await all(client.models.list())).map((model) => model.id), [target.model]);
  assert.equal((await client.models.retrieve(target.model)).id, target.model);
});

check("bad-request", async () => {
  const client = connect({ maxRetries: 2 });
  for (const stream of [false, true]) {
    const error = await failure(OpenAI.BadRequestError, () =>
      client.chat.completions.create(chat(ask("hello"), { temperature: 3, stream })),
    );
    assert.deepEqual([error.status, error.param, error.type], [400, "temperature", "invalid_request_error"]);
    assert(error.requestID);
  }
});

check("too-long", async () => {
  const long = chat("many words ".repeat(20_000) + ask("hello"));
  const error = await failure(OpenAI.BadRequestError, () => connect().chat.completions.create(long));
  assert.deepEqual([error.code, error.param], ["context_length_exceeded", "messages"]);
});

check("wrong-key", async () => {
  const error = await failure(OpenAI.AuthenticationError, () => connect({ apiKey: "wrong" }).models.list());
  assert.equal(error.code, "invalid_api_key");
});

check("unknown-model", async () => {
  const asked = chat(ask("hello"), { model: "no/such" });
  const error = await failure(OpenAI.NotFoundError, () => connect().chat.completions.create(asked));
  assert.deepEqual([error.code, error.param], ["model_not_found", "model"]);
});

check("retries", async () => {
  const busy = (options) => chat(ask("busy", { times: 1, ...options }));
  const error = await failure(OpenAI.InternalServerError, () => connect().chat.completions.create(busy()));
  assert.deepEqual([error.status, error.code], [503, "server_is_overloaded"]);
  assert.equal(error.headers.get("retry-after"), "1");
  const answer = await connect({ maxRetries: 2 }).chat.completions.create(busy({ other: 1 }));
  assert.equal(answer.choices[0].message.content, lines.HELLO);
});

check("server-error", async () => {
  const before = await harness.countRequests(500);
  const client = connect({ maxRetries: 2 });
  await failure(OpenAI.InternalServerError, () => client.chat.completions.create(chat(ask("crash"))));
  assert.equal(await harness.countRequests(500), before + 1);
});

check("broken-stream", async () => {
  const asked = chat(ask("broken"), { stream: true });
  const error = await failure(OpenAI.APIError, async () => all(await connect().chat.completions.create(asked)));
  assert.match(error.message, /engine/);
  await failure(OpenAI.OpenAIError, () => connect().chat.completions.stream(chat(ask("broken"))).finalContent());
});

check("timeout", async () => {
  // The time until the answer begins: nothing ends a stream that has begun and falls silent.
  const client = connect({ timeout: harness.SHORT_MS });
  await failure(OpenAI.APIConnectionTimeoutError, () => client.chat.completions.create(chat(ask("hang"))));
  await untilIdle();
});

check("abort", async () => {
  const endless = chat(ask("endless"), { max_tokens: 10_000, stream: true });
  for await (const chunk of await connect().chat.completions.create(endless)) {
    assert(chunk.id);
    break;
  }
  await untilIdle();
  const controller = new AbortController();
  const stream = await connect().chat.completions.create(endless, { signal: controller.signal });
  controller.abort();
  await all(stream);
  await untilIdle();
});

lacks("Its command line moves code from version to version.", "command");

const question = { model: target.real_model, temperature: 0, max_tokens: harness.MODEL_MAX_TOKENS };
question.messages = [{ role: "user", content: harness.QUESTION }];
const real = () => new OpenAI({ baseURL: target.real_url, apiKey: "none" });

check("real-chat", async () => {
  assert.match((await real().chat.completions.create(question)).choices[0].message.content, /Paris/);
});

check("real-stream", async () => {
  assert.match(text(await all(await real().chat.completions.create({ ...question, stream: true }))), /Paris/);
});

await harness.main("openai");
