// @saintno/comfyui-sdk: its builder and its call wrapper: comfyui-sdk.mjs PACKAGE PORT WORKFLOW PICTURE.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, port, workflowFile, picture] = process.argv.slice(2);
const { main } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
const { CallWrapper, ComfyApi, PromptBuilder } = await import(pathToFileURL(join(folder, main)));
const workflow = JSON.parse(readFileSync(workflowFile, "utf8"));

const api = await new ComfyApi(`http://127.0.0.1:${port}`).init().waitForReady();
const builder = new PromptBuilder(workflow, [], ["images"]).setOutputNode("images", "9");
const output = await new Promise((resolve, reject) => {
  new CallWrapper(api, builder).onFinished(resolve).onFailed(reject).run();
});
const blob = await api.getImage(output.images.images[0]);
writeFileSync(picture, Buffer.from(await blob.arrayBuffer()));
process.exit(0);
