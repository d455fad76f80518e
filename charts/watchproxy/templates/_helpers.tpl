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
app.kubernetes.io/name: {{ include "watchproxy.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
{{- merge (deepCopy (default dict (last .))) (default dict $.Values.commonLabels) $own | toYaml -}}
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
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{- define "watchproxy.image" -}}
{{- with .Values.image -}}
{{- with .registry }}{{ . }}/{{ end -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A security context as this cluster takes it, as JSON. OpenShift chooses users and groups by the
    namespace, and refuses pods that name others. Argument: a list of the context and the values. */}}
{{- define "watchproxy.securityContext" -}}
{{- $ := first . -}}
{{- $adapt := dig "compatibility" "openshift" "adaptSecurityContext" "auto" (default dict $.Values.global) -}}
{{- if or (eq $adapt "force") (and (eq $adapt "auto") ($.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}
{{- omit (default dict (last .)) "runAsUser" "runAsGroup" "fsGroup" | toJson -}}
{{- else -}}
{{- default dict (last .) | toJson -}}
{{- end -}}
{{- end -}}

{{/* The namespace of a monitor, rule or dashboard. Argument: a list of the context and its values. */}}
{{- define "watchproxy.namespaceOf" -}}
{{- default (first .).Release.Namespace (last .).namespace -}}
{{- end -}}

{{/* Its name. In another namespace there may be those of several releases. Same argument. */}}
{{- define "watchproxy.nameOf" -}}
{{- $ := first . -}}
{{- eq (include "watchproxy.namespaceOf" .) $.Release.Namespace | ternary (include "watchproxy.fullname" $) (include "watchproxy.clusterName" $) -}}
{{- end -}}

{{/* The Secret and the ConfigMap that the proxies fill, for tls.mode generated. */}}
{{- define "watchproxy.generatedSecret" -}}
{{- include "watchproxy.fullname" . }}-generated-ca
{{- end -}}

{{- define "watchproxy.caConfigMap" -}}
{{- include "watchproxy.fullname" . }}-ca
{{- end -}}

{{/* "true" if the certificate is mounted from a Secret. */}}
{{- define "watchproxy.mountsCertificate" -}}
{{- if has .Values.tls.mode (list "certManager" "secret") -}}true{{- end -}}
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
{{- concat $names (default list .Values.tls.dnsNames) | uniq | toJson -}}
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
{{- printf "%s/%s" (include "watchproxy.namespaceOf" (list . $m.podMonitor)) (include "watchproxy.nameOf" (list . $m.podMonitor)) -}}
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

{{/* The Service's port. The name of a headless Service leads to the pods themselves. */}}
{{- define "watchproxy.servicePort" -}}
{{- eq .Values.service.clusterIP "None" | ternary (include "watchproxy.port" .Values.config.listen) .Values.service.port -}}
{{- end -}}

{{/* "true" if there is a pod for helm test. */}}
{{- define "watchproxy.tested" -}}
{{- if and .Values.tests.enabled .Values.service.enabled (ne .Values.kind "Sidecar") (ne .Values.tls.mode "none") -}}true{{- end -}}
{{- end -}}

{{/* Labels of that pod, which select none of the proxy's pods. */}}
{{- define "watchproxy.testLabels" -}}
app.kubernetes.io/name: {{ include "watchproxy.name" . }}-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* A name in the proxy's certificate. */}}
{{- define "watchproxy.certificateName" -}}
{{- if .Values.tls.serviceNames -}}
{{- include "watchproxy.fullname" . -}}
{{- else -}}
{{- first .Values.tls.dnsNames | replace "*." "any." -}}
{{- end -}}
{{- end -}}

{{/* The path of a list that the cache answers, or "". The proxy's own token may read it. */}}
{{- define "watchproxy.cachedRead" -}}
{{- if or (has "namespaces" .Values.cachedResources) .Values.cacheEverything -}}
/api/v1/namespaces?resourceVersion=0
{{- end -}}
{{- end -}}
