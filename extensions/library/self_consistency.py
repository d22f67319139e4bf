"""Self-consistency: sample several chains of thought and return the answer that most of them come to.

Follows Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (arXiv 2203.11171):
unweighted majority over final answers. The final answer of a chain is asked for in a second generation on the chain's
own context, held to a pattern, where the paper parses it out of the text.
"""

EXTENSION = {
    "name": "self_consistency",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 64, "default": 5},
            "pattern": {"type": "string", "default": "-?[0-9]{1,9}"},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.7},
        },
        "additionalProperties": False,
    },
}


async def answer_of(branch, pattern, max_tokens, temperature, seed):
    await branch.generate(max_tokens=max_tokens, temperature=temperature, seed=seed)
    await branch.append([{"role": "user", "content": "So what is the answer? Write the answer alone."}])
    final = await branch.generate(max_tokens=32, temperature=0.0, constrain=pattern)
    return final.text


async def main(request, lm):
    args = request.args
    pattern = await lm.constraint({"regex": args["pattern"]})
    prompt = await lm.context(request.messages)
    await prompt.append("Let's think step by step.")
    branches = await prompt.fork(args["n"])
    answers = await asyncio.gather(
        *[answer_of(branch, pattern, args["max_tokens"], args["temperature"], at) for at, branch in enumerate(branches)]
    )
    votes: dict[str, int] = {}
    for answer in answers:
        votes[answer] = votes.get(answer, 0) + 1
    await lm.emit_event("votes", votes)
    return max(votes, key=lambda answer: votes[answer])
