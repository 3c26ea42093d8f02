#include "hosts/cli/search/report/markup.hpp"

#include "hosts/cli/search/report/figure.hpp"

namespace attnkit::cli {
namespace {

constexpr const char* style = R"css(
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;
font-variant-numeric:tabular-nums}
main{max-width:1180px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:15px;font-weight:600;color:var(--muted);margin:0 0 10px}
h2{font-size:18px;margin:52px 0 6px}
p{max-width:46em;margin:6px 0}
.answer{font-size:22px;line-height:1.4;max-width:40em;margin:0 0 26px;text-wrap:pretty}
.quiet,figcaption,small,caption{color:var(--muted)}
.notice{border-left:3px solid var(--winner);padding:2px 0 2px 12px}
.top{display:flex;flex-wrap:wrap;gap:20px 56px;align-items:flex-start;margin:0 0 26px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 18px;margin:0;font-size:13.5px}
dt{color:var(--muted)}dd{margin:0;overflow-wrap:anywhere}
table{border-collapse:collapse;font-size:13.5px;line-height:1.35}
caption{text-align:left;padding:0 0 6px;font-size:13px}
th,td{padding:5px 10px;text-align:left;white-space:nowrap;border-bottom:1px solid var(--rule);vertical-align:baseline}
th:first-child,td:first-child{padding-left:6px}
thead th{font-weight:600;border-bottom:1px solid var(--muted);vertical-align:bottom}
tbody th{font-weight:400}
.n{text-align:right}
td small{display:inline-block;min-width:7.2em;text-align:right;font-size:11.5px}
.same{color:var(--muted)}
.new{font-weight:600}
.wide{white-space:normal;min-width:18em;overflow-wrap:anywhere}
.top{overflow-x:auto}
.scroll{overflow-x:auto;margin:12px 0 0}
figure{margin:12px 0 0}
figure svg{display:block;height:auto;width:100%}
figcaption{font-size:13px;margin-top:6px;max-width:56em}
svg g{font-family:system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif}
svg .gridline{stroke-dasharray:none}
.key{display:inline-block;width:.75em;height:.75em;border-radius:50%;margin:0 .3em 0 .1em;vertical-align:-.04em}
.ranks{font-size:12.5px}
.ranks th,.ranks td{padding:4px 6px}
.ranks td small{font-size:11px;min-width:6.7em}
.ranks thead th{cursor:pointer;user-select:none}
.ranks thead th[aria-sort=ascending]::after{content:" \2191"}
.ranks thead th[aria-sort=descending]::after{content:" \2193"}
.ranks .winner td{background:var(--bad1)}
.ranks .baseline td{background:var(--even)}
.tag{font-size:11.5px;color:var(--muted);margin-left:.4em}
code,pre{font:12.5px/1.5 ui-monospace,"DejaVu Sans Mono",monospace}
code span,pre span{display:inline-block}
pre{background:var(--even);padding:10px 14px;margin:10px 0;white-space:pre-wrap;overflow-wrap:anywhere}
.notes dl{grid-template-columns:minmax(7em,max-content) minmax(0,46em);gap:10px 18px;font-size:14px}
.notes dt{color:var(--ink);font-weight:600}
@media (max-width:600px){.top th,.top td{padding:5px 6px;font-size:12.5px}
main{padding:22px 16px 40px}.answer{font-size:18px}h2{margin-top:40px}
dl,.notes dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}}
@media print{@page{margin:13mm}
body{font-size:10pt}main{max-width:none;padding:0}.answer{font-size:14pt}h2{margin-top:22pt;break-after:avoid}
figure,.top,tr{break-inside:avoid}.scroll,.top{overflow:visible}thead{display:table-header-group}
.ranks,.ranks .tag{font-size:7pt}.ranks th,.ranks td{padding:1.5pt 2.5pt}.ranks thead th{white-space:normal}
.ranks td small{font-size:6.2pt;min-width:6.6em}figure svg{min-width:0!important}*{print-color-adjust:exact}}
)css";

constexpr const char* script = R"js(
for(const table of document.querySelectorAll(".ranks"))table.tHead.onclick=e=>{
const th=e.target.closest("th"),body=table.tBodies[0],i=th.cellIndex,up=th.getAttribute("aria-sort")!="ascending";
const key=r=>{const c=r.cells[i],v=c.dataset.v;return v===undefined?c.textContent:v===""?Infinity:+v};
for(const t of table.tHead.rows[0].cells)t.removeAttribute("aria-sort");
th.setAttribute("aria-sort",up?"ascending":"descending");
body.append(...[...body.rows].sort((a,b)=>{const x=key(a),y=key(b);
if(x===y)return 0;if(x===Infinity||y===Infinity)return x===Infinity?1:-1;return(x<y?-1:1)*(up?1:-1)}))};
)js";

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f) continue;
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string report_style() { return colour_style() + style; }

std::string report_script() { return script; }

}  // namespace attnkit::cli
