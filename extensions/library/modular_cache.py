"""Modular cache: compute the parts of prompts once, and answer each question over the parts that it names.

After Gim et al., "Prompt Cache: Modular Attention Reuse for Low-Latency Inference" (arXiv 2311.04934): modules have
fixed places in one schema, a prompt takes some of them, and their positions keep the gaps of the others. Here the
schema is a context and a prompt is a fork of it, with the other modules dropped. One thing differs: there modules are
computed without seeing each other, here a module has seen those before it, also where a prompt leaves them out.
"""

EXTENSION = {
    "name": "modular_cache",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "modules": {
                "type": "object",
                "additionalProperties": {"type": "string", "minLength": 1},
                "minProperties": 1,
                "maxProperties": 64,
            },
            "questions": {
                "type": "array",
                "minItems": 1,
                "maxItems": 64,
                "items": {
                    "type": "object",
                    "properties": {
                        "uses": {"type": "array", "items": {"type": "string"}},
                        "question": {"type": "string"},
                    },
                    "required": ["uses", "question"],
                    "additionalProperties": False,
                },
            },
            "max_tokens": {"type": "integer", "minimum": 1, "default": 60},
        },
        "required": ["modules", "questions"],
        "additionalProperties": False,
    },
}


async def ask(branch, asked, spans, tokens):
    for name, (start, stop) in spans.items():
        if name not in asked["uses"]:
            await branch.drop(start, stop)
    await branch.append([{"role": "user", "content": asked["question"]}])
    answer = await branch.generate(max_tokens=tokens, temperature=0.0)
    kept = (await branch.info()).bytes
    await branch.release()
    return {"question": asked["question"], "answer": answer.text, "bytes": kept, "cached": answer.usage.cached_tokens}


async def main(request, lm):
    args = request.args
    for asked in args["questions"]:
        for name in asked["uses"]:
            if name not in args["modules"]:
                raise ValueError(f"there is no module {name!r}")
    schema = await lm.context(request.messages)
    spans = {}
    for name, text in args["modules"].items():
        start = schema.length
        await schema.append([{"role": "user", "content": text}])
        spans[name] = (start, schema.length)
    await schema.prefill()
    branches = await schema.fork(len(args["questions"]))
    return await asyncio.gather(
        *[ask(branch, asked, spans, args["max_tokens"]) for branch, asked in zip(branches, args["questions"])]
    )
