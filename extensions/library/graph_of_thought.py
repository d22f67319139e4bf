"""Graph of thought: solve parts side by side, merge them pair by pair, and improve what came out.

Follows Besta et al., "Graph of Thoughts" (arXiv 2308.09687) with its operations generate, aggregate and refine in the
fixed graph of its merging examples: k thoughts, a tree of merges, one refinement.
"""

EXTENSION = {
    "name": "graph_of_thought",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "thoughts": {"type": "integer", "minimum": 2, "maximum": 16, "default": 4},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 80},
        },
        "additionalProperties": False,
    },
}


async def generate(root, tokens, seed):
    branch = await root.fork()
    thought = await branch.generate(max_tokens=tokens, temperature=0.9, seed=seed)
    await branch.release()
    return thought.text


async def merge(root, one, other, tokens):
    branch = await root.fork()
    await branch.append(
        [
            {"role": "assistant", "content": one},
            {"role": "user", "content": f"Another answer: {other}\nJoin both into one better answer."},
        ]
    )
    merged = await branch.generate(max_tokens=tokens, temperature=0.0)
    await branch.release()
    return merged.text


async def main(request, lm):
    args = request.args
    root = await lm.context(request.messages)
    level = await asyncio.gather(*[generate(root, args["max_tokens"], at) for at in range(args["thoughts"])])
    while len(level) > 1:
        await lm.emit_event("thoughts", level)
        pairs = [(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        rest = level[len(pairs) * 2 :]
        merged = await asyncio.gather(*[merge(root, one, other, args["max_tokens"]) for one, other in pairs])
        level = [*merged, *rest]
    await root.append(
        [
            {"role": "assistant", "content": level[0]},
            {"role": "user", "content": "Correct what is wrong in that answer and write it again."},
        ]
    )
    refined = await root.generate(max_tokens=args["max_tokens"], temperature=0.0, emit=True)
    return refined.text
