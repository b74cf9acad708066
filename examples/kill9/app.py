"""The handlers that the demo's workers run."""

import asyncio

import qo

app = qo.App()


@app.task("resize_image")
async def resize_image(input: dict) -> dict:
    await asyncio.sleep(0.05)  # Stands for the work itself.
    return {"image": input["image"], "width": 320}
