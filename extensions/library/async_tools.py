"""Asynchronous tools: the model goes on writing while its calls run, and reads each answer as soon as it is there.

After Gim et al., "Asynchronous LLM Function Calling" (arXiv 2412.07017): calls do not block the generation, and
answers interrupt it where they arrive. There the model is trained to write calls and to be interrupted; here it is
asked for the calls once, on a fork, and answers are put into its text every `stride` tokens at the earliest.
"""

EXTENSION = {
    "name": "async_tools",
    "version": "1.0.0",
    "capabilities": ["tools"],
    "params": {
        "type": "object",
        "properties": {
            "tools": {"type": "array", "items": {"type": "string"}, "minItems": 1},
            "stride": {"type": "integer", "minimum": 1, "maximum": 256, "default": 8},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 200},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 0.0},
            "seed": {"type": "integer", "default": 0},
        },
        "additionalProperties": False,
    },
}


async def answer_of(call):
    """What a tool says, or why it says nothing."""
    try:
        found = await call.result()
    except (LookupError, ValueError, PermissionError, TimeoutError, RuntimeError) as error:
        return "error: " + str(error)
    return found if isinstance(found, str) else json.dumps(found)


async def main(request, lm):
    args = request.args
    names = args.get("tools", [tool["name"] for tool in await lm.tools()])
    if not names:
        raise ValueError("there is no tool to call")
    ctx = await lm.context(request.messages)
    planner = await ctx.fork()
    plan = await planner.generate(
        max_tokens=256, temperature=args["temperature"], seed=args["seed"], constrain={"tools": names}
    )
    await planner.release()
    running = [await lm.start_tool(call["name"], call["arguments"]) for call in plan.tool_calls]
    await lm.emit_event("started", [call.name for call in running])
    left, injected = args["max_tokens"], []
    ended = False
    while left > 0 and not (ended and not running):
        if not ended:
            piece = await ctx.generate(
                max_tokens=min(args["stride"], left), temperature=args["temperature"], seed=args["seed"], emit=True
            )
            left -= len(piece.tokens)
            ended = piece.finish_reason == "stop"
            if ended and piece.tokens[-1] in lm.model.eos_token_ids:
                await ctx.truncate(ctx.length - 1)
        waiting = []
        for call in running:
            # Once the model has nothing left to say, the next answer is waited for.
            if call.status in ("done", "failed") or (ended and not waiting):
                said = await answer_of(call)
                injected.append({"name": call.name, "answer": said, "after_tokens": args["max_tokens"] - left})
                await ctx.append(f"\n[{call.name} answers: {said}]\n")
                await lm.emit_event("injected", injected[-1])
                ended = False
            else:
                waiting.append(call)
        running = waiting
    for call in running:
        await call.cancel()
    return {"calls": [call["name"] for call in plan.tool_calls], "injected": injected}
