"""Prefix tree: answer many questions about one text, which is computed once and shared by all of them.

The sharing of RadixAttention (Zheng et al., "SGLang", arXiv 2312.07104), said by the program instead of found by the
server: the text is the trunk, each question a branch, each follow-up a branch of that.
"""

EXTENSION = {
    "name": "prefix_tree",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "questions": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 64},
            "follow_up": {"type": "string"},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 60},
        },
        "required": ["questions"],
        "additionalProperties": False,
    },
}


async def ask(branch, question, follow_up, tokens):
    await branch.append([{"role": "user", "content": question}])
    answer = await branch.generate(max_tokens=tokens, temperature=0.0)
    more = None
    if follow_up is not None:
        await branch.append([{"role": "user", "content": follow_up}])
        more = (await branch.generate(max_tokens=tokens, temperature=0.0)).text
    await branch.release()
    return {"question": question, "answer": answer.text, "follow_up": more}


async def main(request, lm):
    args = request.args
    trunk = await lm.context(request.messages)
    await trunk.prefill()
    branches = await trunk.fork(len(args["questions"]))
    return await asyncio.gather(
        *[
            ask(branch, question, args.get("follow_up"), args["max_tokens"])
            for branch, question in zip(branches, args["questions"])
        ]
    )
