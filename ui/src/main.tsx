/** The beginning: credentials out of the address, the configuration, a tighter policy, then the pages. */

import { render } from "preact";
import "./style/theme.css";
import "./style/frame.css";
import "./style/panel.css";
import "./style/table.css";
import "./style/small.css";
import "./style/tree.css";
import "./style/steps.css";
import "./style/chart.css";
import "./style/pipeline.css";
import "./style/phone.css";
import { problemOf } from "./s3/problem";
import { Gate } from "./shell/gate";
import { Failure } from "./show/states";
import { loadConfig } from "./start/config";
import { takeFromAddress } from "./start/credentials";
import { narrowConnections } from "./start/policy";

async function start(): Promise<void> {
  const given = takeFromAddress(); // First of all, so that they stand in the address for as short as can be.
  const place = document.getElementById("page")!;
  try {
    const config = await loadConfig();
    narrowConnections(config);
    render(<Gate config={config} given={given} />, place);
  } catch (error) {
    render(
      <main class="gate">
        <h1>qo</h1>
        <Failure problem={problemOf(error)} />
      </main>,
      place,
    );
  }
}

void start();
