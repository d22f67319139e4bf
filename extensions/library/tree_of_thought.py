"""Tree of thought: propose next steps, rate the partial solutions, keep the best few, go on from there.

Follows Yao et al., "Tree of Thoughts" (arXiv 2305.10601): breadth-first search with b states kept, thoughts sampled
independently ("sample"), states rated one by one ("value") with three words. States are contexts: a thought is computed
once, and its siblings share everything before it.
"""

EXTENSION = {
    "name": "tree_of_thought",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "depth": {"type": "integer", "minimum": 1, "maximum": 8, "default": 2},
            "breadth": {"type": "integer", "minimum": 1, "maximum": 8, "default": 2},
            "thoughts": {"type": "integer", "minimum": 1, "maximum": 8, "default": 3},
            "step_tokens": {"type": "integer", "minimum": 1, "default": 60},
            "answer_tokens": {"type": "integer", "minimum": 1, "default": 120},
        },
        "additionalProperties": False,
    },
}

WORTH = {"sure": 20.0, "likely": 1.0, "impossible": 0.001}


async def think(state, tokens, seed):
    await state.append([{"role": "user", "content": "Write the next step of the solution, and nothing else."}])
    step = await state.generate(max_tokens=tokens, temperature=0.8, seed=seed)
    return step.text


async def rate(state, words):
    judge = await state.fork()
    await judge.append(
        [{"role": "user", "content": "Will this lead to a correct solution: sure, likely or impossible?"}]
    )
    verdict = await judge.generate(max_tokens=8, temperature=0.0, constrain=words)
    await judge.release()
    return WORTH[verdict.text]


async def main(request, lm):
    args = request.args
    words = await lm.constraint({"choice": list(WORTH)})
    kept = [await lm.context(request.messages)]
    for level in range(args["depth"]):
        states = []
        for state in kept:
            states += await state.fork(args["thoughts"])
            await state.release()
        steps = await asyncio.gather(*[think(state, args["step_tokens"], at) for at, state in enumerate(states)])
        values = await asyncio.gather(*[rate(state, words) for state in states])
        order = sorted(range(len(states)), key=lambda at: values[at], reverse=True)
        await lm.emit_event(
            "level", {"depth": level, "steps": steps, "values": values, "kept": order[: args["breadth"]]}
        )
        for at in order[args["breadth"] :]:
            await states[at].release()
        kept = [states[at] for at in order[: args["breadth"]]]
    best = kept[0]
    await best.append([{"role": "user", "content": "Now write the final answer."}])
    answer = await best.generate(max_tokens=args["answer_tokens"], temperature=0.0, emit=True)
    return answer.text
