/** The views, in the order of the tabs. A view is shown where the report has what it draws. */

import type { Component } from "svelte";
import type { Data, Report } from "../lib/report";
import Alignment from "./Alignment.svelte";
import Atlas from "./Atlas.svelte";
import Cells from "./Cells.svelte";
import Gradient from "./Gradient.svelte";
import Head from "./Head.svelte";
import Layers from "./Layers.svelte";
import Lens from "./Lens.svelte";
import Map from "./Map.svelte";
import Positions from "./Positions.svelte";
import Run from "./Run.svelte";
import Runs from "./Runs.svelte";
import Tree from "./Tree.svelte";

export interface View {
  name: string; // in the report, in the address
  title: string;
  about: string | ((report: Report) => string);
  component: Component<{ data: Data }>;
}

export const VIEWS: View[] = [
  { name: "map", title: "Model", about: "What it is made of: shapes, parameters and cost of each part.", component: Map },
  { name: "run", title: "Run", about: "The course of training, as metrics.jsonl has it; click to choose a validation.", component: Run },
  { name: "runs", title: "Runs", about: "The courses of several runs beside one another: each figure is a chart, each run a line.", component: Runs },
  { name: "cells", title: "Cells and gates", about: "The text, coloured by one unit; units ranked by what they follow.", component: Cells },
  { name: "gradient", title: "Gradient", about: "How far back a loss reaches: the gradient at each earlier token.", component: Gradient },
  { name: "alignment", title: "Alignment", about: (report) => `Where a decoder looks for each ${report.written === null ? "query" : "token that it writes"}.`, component: Alignment },
  { name: "tree", title: "Decoding", about: "The search, step by step: what was considered, kept and pruned.", component: Tree },
  { name: "attention", title: "Attention", about: "Every head of every layer; choose one to see its weights.", component: Atlas },
  { name: "lens", title: "Lens", about: "What each layer would say if it were the last.", component: Lens },
  { name: "layers", title: "Layers", about: "How states change from layer to layer, and what each layer knows.", component: Layers },
  { name: "positions", title: "Positions", about: "How the model knows where a token stands.", component: Positions },
  { name: "head", title: "One head", about: "Queries, keys, scores, softmax and sum, worked through.", component: Head },
];
