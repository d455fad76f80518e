{{- define "watchproxy.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "watchproxy.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "watchproxy.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "watchproxy.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Names of cluster-scoped objects. They include the namespace, because releases in two namespaces may
    have the same name. */}}
{{- define "watchproxy.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "watchproxy.fullname" .) -}}
{{- end -}}

{{- define "watchproxy.selectorLabels" -}}
app.kubernetes.io/name: {{ include "watchproxy.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "watchproxy.labels" -}}
{{ include "watchproxy.labelsAnd" (list . dict) }}
{{- end -}}

{{/* The labels of an object with further labels, which take precedence over the chart's.
    Argument: a list of the context and the further labels. */}}
{{- define "watchproxy.labelsAnd" -}}
{{- $ := first . -}}
{{- $own := include "watchproxy.selectorLabels" $ | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" $.Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" $.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $.Chart.Name $.Chart.Version | replace "+" "_") -}}
{{- merge (deepCopy (last .)) $.Values.commonLabels $own | toYaml -}}
{{- end -}}

{{- define "watchproxy.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "watchproxy.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "watchproxy.subject" -}}
- kind: ServiceAccount
  name: {{ include "watchproxy.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}

{{- define "watchproxy.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "watchproxy.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" -}}
{{- required "tls.secret.name: name the Secret with tls.crt and tls.key, or let tls.mode be generated or certManager" .Values.tls.secret.name -}}
{{- else -}}
{{- include "watchproxy.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{/* The names by which clients reach the proxy, as a JSON list. */}}
{{- define "watchproxy.dnsNames" -}}
{{- $names := list -}}
{{- if .Values.tls.serviceNames -}}
{{- $service := include "watchproxy.fullname" . -}}
{{- $in := printf "%s.%s" $service .Release.Namespace -}}
{{- $names = list $service $in (printf "%s.svc" $in) (printf "%s.svc.%s" $in .Values.tls.clusterDomain) -}}
{{- end -}}
{{- concat $names .Values.tls.dnsNames | uniq | toJson -}}
{{- end -}}

{{- define "watchproxy.checksum" -}}
{{- include "watchproxy.configuration" . | sha256sum -}}
{{- end -}}

{{/* The job label of the proxy's metrics, as prometheus-operator derives it from the enabled monitor. */}}
{{- define "watchproxy.job" -}}
{{- $m := .Values.monitoring -}}
{{- if $m.prometheusRule.job -}}
{{- $m.prometheusRule.job -}}
{{- else if $m.podMonitor.enabled -}}
{{- printf "%s/%s" .Release.Namespace (include "watchproxy.fullname" .) -}}
{{- else if $m.serviceMonitor.enabled -}}
{{- include "watchproxy.fullname" . }}-admin
{{- else -}}
{{- fail "monitoring.prometheusRule.job: name the job label of the proxy's metrics, or enable monitoring.podMonitor or serviceMonitor" -}}
{{- end -}}
{{- end -}}

{{/* "true" if the proxy may impersonate anybody, because all lists are empty. */}}
{{- define "watchproxy.impersonatesAnybody" -}}
{{- with .Values.rbac.impersonation -}}
{{- if not (or .users .groups .serviceAccounts) -}}true{{- end -}}
{{- end -}}
{{- end -}}
